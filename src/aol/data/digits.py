"""`digits`: the 1,797 handwritten digits inside scikit-learn, 8×8 grey; the default, never downloaded.

Assumes scikit-learn. One fifth of each class, drawn with seed 0, is the test split: 1,438 to train on, 359
to test.
"""

from __future__ import annotations

from functools import cache

import torch

from aol.data.images import Augmentation, ImageSet, Pair, centred, mean_std, split_per_class

TEST_FRACTION = 0.2
TEST_SEED = 0


@cache
def load_digits() -> Pair[ImageSet]:
    """Return the digits, split per class with a fixed seed.

    Pixels 0..16 become `round(x * 255 / 16)`. Input is `pixel / 128 - 1`. Training shifts by up to one
    pixel and never mirrors: a mirrored digit is no digit.

    >>> pair = load_digits()
    >>> len(pair.train), len(pair.test), pair.train.shape, pair.test.counts.tolist()
    (1438, 359, (1, 8, 8), [36, 36, 35, 37, 36, 36, 36, 36, 35, 36])
    """
    from sklearn import datasets  # here, because it takes a second that no other data set needs

    pixels, target = datasets.load_digits(return_X_y=True)
    images = (torch.from_numpy(pixels) * (255 / 16)).round().to(torch.uint8).view(-1, 1, 8, 8)
    labels = torch.from_numpy(target).to(torch.int64)
    classes = tuple(str(digit) for digit in range(10))
    kept, held = split_per_class(labels, TEST_FRACTION, seed=TEST_SEED)
    return Pair(
        name="digits",
        train=ImageSet(images[kept], labels[kept], classes, "digits/train"),
        test=ImageSet(images[held], labels[held], classes, "digits/test"),
        classes=classes,
        normalisation=centred(1),
        standardised=mean_std((0.3060,), (0.3763,)),
        augmentation=Augmentation(pad=1, flip=False),
    )
