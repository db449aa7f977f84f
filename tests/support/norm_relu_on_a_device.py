"""The kernels of norm_relu against PyTorch in float64: by Triton's interpreter, and on CUDA."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aol.lab.nets import norm_relu as place
from aol.lab.nets.stacked_layers import StackedBatchNorm

LAST = torch.channels_last


def near(ours: Tensor, theirs: Tensor, within: float) -> None:
    scale = theirs.abs().max().item() + 1e-6
    assert (ours.double().cpu() - theirs.double()).abs().max().item() <= within * scale


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("added", [True, False])
@pytest.mark.parametrize(
    ("shape", "runs"), [((3, 16, 4, 4), 1), ((7, 64, 5, 5), 1), ((2, 96, 3, 3), 3), ((70, 128, 1, 1), 1)]
)
def test_kernels_do_what_pytorch_does(
    shape: tuple[int, ...], runs: int, added: bool, training: bool, device: torch.device
) -> None:
    generator = torch.Generator().manual_seed(0)
    x, shortcut, grad = (torch.randn((3, *shape), generator=generator) + 3).bfloat16()
    plain = nn.BatchNorm2d(shape[1]).double().train(training)
    nn.init.uniform_(plain.weight, 0.5, 1.5)
    nn.init.normal_(plain.bias)
    parts = [nn.BatchNorm2d(shape[1] // runs) for _ in range(runs)]
    norm = StackedBatchNorm(parts) if runs > 1 else parts[0]
    norm.load_state_dict(
        {k: v.expand_as(norm.state_dict()[k]) if v.dim() == 0 else v for k, v in plain.state_dict().items()}
    )
    norm.to(device).train(training)
    ours = [each.to(device).to(memory_format=LAST).requires_grad_() for each in (x, shortcut)]
    theirs = [each.double().requires_grad_() for each in (x, shortcut)]
    with torch.set_grad_enabled(training):
        assert place._applies(norm, ours[0], ours[1] if added else None)
        y = place.norm_relu(norm, ours[0], ours[1] if added else None)
        z = plain(theirs[0])
        z = F.relu(z + theirs[1] if added else z)
    near(y.detach(), z.detach(), 0.01)
    assert y.is_contiguous(memory_format=LAST)
    near(norm.running_mean, plain.running_mean, 1e-5)
    near(norm.running_var, plain.running_var, 1e-5)
    assert (norm.num_batches_tracked == int(training)).all()
    if training:
        y.backward(grad.to(device))
        z.backward(grad.double())
        for mine, other in zip(ours[: 1 + added], theirs, strict=False):
            assert mine.grad is not None
            assert other.grad is not None
            near(mine.grad, other.grad, 0.02)
        near(norm.weight.grad, plain.weight.grad, 0.02)
        near(norm.bias.grad, plain.bias.grad, 0.02)
