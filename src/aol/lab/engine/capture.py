"""A function that is captured once as a CUDA graph and then replayed; without CUDA it is called each time.

Everything it reads and writes must keep its memory between calls, and nothing in it may wait for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_WARM_UPS = 3  # calls before the capture: kernels are compiled, optimiser buffers created


class Captured:
    """A function without arguments or result.

    Args:
        work: the function.
        device: the device of its tensors.
        touched: returns the tensors it changes; they are restored after the warm-up calls before a capture.
        capture: False for work that cannot be captured, such as communication between processes.
    """

    def __init__(
        self,
        work: Callable[[], None],
        *,
        device: torch.device,
        touched: Callable[[], Iterable[Tensor]],
        capture: bool = True,
    ) -> None:
        self._work, self._touched = work, touched
        self._device = device
        self._capture = capture and device.type == "cuda"
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        """Call the function once."""
        if not self._capture:
            self._work()
            return
        if self._graph is None:
            self._graph = self._record()
        self._graph.replay()

    def _record(self) -> torch.cuda.CUDAGraph:
        with torch.cuda.device(self._device):
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            # Random numbers are put back, too, so that a resumed run draws the same ones after its own warm-up.
            with torch.random.fork_rng(devices=[self._device]), torch.cuda.stream(side):
                for _ in range(_WARM_UPS):
                    with restored(self._touched):
                        self._work()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            # Threads that move decoded images into pinned memory may allocate it meanwhile.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._work()
        return graph


@contextmanager
def restored(tensors: Callable[[], Iterable[Tensor]]) -> Iterator[None]:
    """Restore the values of tensors afterwards; those created in between become zero, as new optimiser buffers are.

    >>> value = torch.ones(2)
    >>> with restored(lambda: [value]):
    ...     _ = value.mul_(5)
    >>> value
    tensor([1., 1.])
    """
    before = {tensor.data_ptr(): (tensor, tensor.detach().clone()) for tensor in tensors() if tensor.numel()}
    yield
    with torch.no_grad():
        for tensor in tensors():
            if tensor.numel():
                _, old = before.get(tensor.data_ptr(), (tensor, None))
                tensor.zero_() if old is None else tensor.copy_(old)
