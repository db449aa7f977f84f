"""Data sets: built-in ones in memory, images of any size decoded on the fly, augmentation on the device.

Needs torch and numpy; scikit-learn, Pillow, pooch and datasets are imported when a set needs them.
"""

from aol.lab.data.encoded_images import StoredImages
from aol.lab.data.images import DataError, ImageSet, Pair
from aol.lab.data.named import find, get, list_sets
from aol.lab.data.open import open_data

__all__ = ["DataError", "ImageSet", "Pair", "StoredImages", "find", "get", "list_sets", "open_data"]
