"""Augmentation on a CUDA device, replayed as a graph."""

from __future__ import annotations

import torch

from aol.lab.data import Augmentation, centred
from aol.lab.data.augment import Draws, draw, training_batch


def test_a_cuda_graph_replays_a_batch() -> None:
    images = torch.randint(256, (64, 3, 32, 32), dtype=torch.uint8)
    generators = [torch.Generator().manual_seed(r) for r in range(5)]
    draws = draw(32, Augmentation(4, True), generator=generators)
    index = torch.randint(64, (5, 32))
    expected = [
        training_batch(images, index[:, at], draws.batch(at), pad=4, normalisation=centred(3))
        for at in (slice(0, 16), slice(16, 32))
    ]
    on_device, there = images.cuda(), Draws(*(each.cuda() for each in draws))
    now = there.batch(slice(0, 16))
    static_draws = Draws(*(part.clone() for part in now))
    static_index = index[:, :16].cuda().contiguous()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        training_batch(on_device, static_index, static_draws, pad=4, normalisation=centred(3))
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = training_batch(on_device, static_index, static_draws, pad=4, normalisation=centred(3))
    for at, wanted in zip((slice(0, 16), slice(16, 32)), expected, strict=True):
        static_index.copy_(index[:, at])
        for held, part in zip(static_draws, there.batch(at), strict=True):
            held.copy_(part)
        graph.replay()
        assert torch.equal(out.cpu(), wanted)
