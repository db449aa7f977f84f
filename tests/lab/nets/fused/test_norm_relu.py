"""The kernels of norm_relu by Triton's interpreter."""

from tests.support.norm_relu_on_a_device import *  # noqa: F403
