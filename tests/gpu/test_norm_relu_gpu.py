"""The kernels of norm_relu on CUDA."""

from tests.support.norm_relu_on_a_device import *  # noqa: F403
