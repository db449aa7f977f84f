"""Data sets: built-in ones in memory, folders of any size decoded on the fly, augmentation on the device.

Needs torch and numpy; scikit-learn, Pillow, and pyarrow are imported when a set needs them.
"""

from aol.lab.data.augment import Draws, crop_flip, draw, evaluation_batch, training_batch
from aol.lab.data.crops import RandomResizedCrop, ResizeCenterCrop, Transform, crops_for
from aol.lab.data.download import UnreachableError, get
from aol.lab.data.encoded_images import Records, StoredImages, into_memory
from aol.lab.data.errors import DataError
from aol.lab.data.images import (
    IMAGENET,
    Augmentation,
    ImageSet,
    Normalisation,
    Pair,
    centred,
    mean_std,
    split_per_class,
)
from aol.lab.data.named import NAMES, Listing, find, list_sets
from aol.lab.data.open import FileState, Report, check, load, open_data
from aol.lab.data.pack import Packed, pack

__all__ = [
    "IMAGENET", "NAMES", "Augmentation", "DataError", "Draws", "FileState", "ImageSet", "Listing", "Normalisation",
    "Packed", "Pair", "RandomResizedCrop", "Records", "Report", "ResizeCenterCrop", "StoredImages", "Transform",
    "UnreachableError", "centred", "check", "crop_flip", "crops_for", "draw", "evaluation_batch", "find",
    "get", "into_memory", "list_sets", "load", "mean_std", "open_data", "pack", "split_per_class", "training_batch",
]  # fmt: skip
