"""Data sets: named ones in memory, folders of any size decoded on the fly, augmentation where the pixels lie.

Assumes torch and numpy alone; scikit-learn, Pillow, pyarrow and lmdb are imported when a set needs them.
"""
