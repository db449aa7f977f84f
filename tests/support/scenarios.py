"""What each process does in the tests with several processes. Every function also works alone, as the reference."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import aol
from tests.support.checks import plain

SIZE = 53
SAMPLE_LOOK = ("age", "ema", "class_age", "class_weight", "sample_weight", "weights")


def seen(state, *names: str) -> list:
    return plain([state.epoch, *(getattr(state, name) for name in names)])


def share(epoch: int, rank: int, world: int, high: int, runs: tuple[int, ...], own: bool, padded: bool):
    """What one process observes in an epoch: (index, correct)."""
    generator = torch.Generator().manual_seed(100 * epoch + rank)
    if padded:  # as torch's DistributedSampler does it: every process equally many, the last ones from the front again
        order = torch.randperm(high, generator=torch.Generator().manual_seed(epoch))
        index = torch.cat((order, order[: -high % world]))[rank::world]
    else:  # uneven, overlapping, with repeats; in some epochs a process, or all of them, see nothing
        size = 0 if epoch == 3 or (epoch == 1 and rank == world - 1) else 7 + 11 * rank + epoch
        index = torch.randint(0, high, (*runs, size) if own else (size,), generator=generator)
    return index, torch.rand(*runs, index.shape[-1], generator=generator) < 0.4


def sample_ages(
    rank: int, world: int, *, alone: bool = False, own=False, padded=False, epochs=6, kind="SampleAges", **settings
) -> list:
    """Each process observes its share; alone, one process observes all the shares in the order of ranks."""
    ages = getattr(aol, kind)([i * i % 5 for i in range(SIZE)], **settings)
    runs = tuple(ages.rho.shape)
    found = []
    for epoch in range(epochs):
        for each in range(world) if alone else [rank]:
            ages.observe(*share(epoch, each, world, SIZE, runs, own, padded))
        ages.advance()
        found.append(seen(ages, *SAMPLE_LOOK))
    return found


def inside_ddp(rank: int, world: int, *, broadcast: bool) -> list:
    """As `sample_ages`, with the ages in the model that DDP wraps, which is asked while they observe."""
    model = nn.Linear(2, 2)
    model.ages = aol.SampleAges([i * i % 5 for i in range(SIZE)], rho=0.3)
    parallel = DistributedDataParallel(model, broadcast_buffers=broadcast)
    looks = []
    for epoch in range(6):
        model.ages.observe(*share(epoch, rank, world, SIZE, (), False, False))
        parallel(torch.zeros(1, 2)).sum().backward()
        model.ages.advance()
        looks.append(seen(model.ages, *SAMPLE_LOOK))
    return looks


def recorder(rank: int, world: int, *, folder: str, alone: bool = False, **settings) -> None:
    """Each process records its share; alone, one process records all the shares in the order of ranks."""
    labels = torch.tensor([i * i % 5 for i in range(SIZE)])
    ages = aol.SampleAges(labels, **settings)
    written = aol.Recorder(folder, ages, resume=True)
    for epoch in range(6):
        for each in range(world) if alone else [rank]:
            index, _ = share(epoch, each, world, SIZE, (), False, padded=epoch % 2 == 0)
            generator = torch.Generator().manual_seed(1000 * epoch)  # a network answers whoever asks
            logits = torch.randn(SIZE, 5, generator=generator)[index]
            ages.observe(index, aol.is_correct(logits, labels[index]))
            written.observe(index, logits)
            written.test(labels[index], logits.flip(-1))
        ages.advance()
        written.advance(lr=0.5)
    written.close()


def class_states(
    rank: int, world: int, *, kind: str, classes: int = 5, alone: bool = False, own: bool = False, **settings
) -> list:
    """Each process observes its share; alone, one process observes all the shares."""
    state = getattr(aol, kind)(classes, **settings)
    runs = tuple(state.rho.shape)
    found = []
    names = ("age", "ema", "accuracy", "threshold") if kind == "ClassAges" else ("error_rate",)
    for epoch in range(6):
        for each in range(world) if alone else [rank]:
            state.observe(*share(epoch, each, world, classes, runs, own, padded=False))
        state.advance()
        found.append(seen(state, "class_weight", *names))
    return found


def margins(
    rank: int, world: int, *, classes=5, stored=False, alone=False, own=False, padded=False, **settings
) -> list:
    """As `class_states`."""
    labels = [i * i % 5 for i in range(SIZE)] if stored else None
    state = aol.Margins(classes, labels=labels, width=0.1, **settings)
    runs = tuple(state.rho.shape)
    found = []
    for epoch in range(6):
        for each in range(world) if alone else [rank]:
            high = classes
            key, right = share(epoch, each, world, SIZE if stored else high, runs, own, padded)
            truth = torch.tensor(labels)[key] if stored else key
            guess = (truth * 3 + torch.arange(right.shape[-1])) % high
            answer = torch.where(right, truth, guess)
            if state.signal == "probability":
                answer = (4 * torch.nn.functional.one_hot(answer, high) + torch.linspace(0, 1, high)).softmax(-1)
            state.observe(key, answer)
        state.advance(scale=1 - epoch / 10)
        found.append([seen(state, "offsets", "missed", "claimed"), plain(state.state_dict().get("_age"))])
    assert float(state.offsets.abs().max()) > 0.05
    return found


def apart(rank: int, world: int) -> list:
    """Without sync each process keeps to itself."""
    ages, classes = aol.SampleAges([0, 0, 0], rho=1.0), aol.ClassAges(3, threshold=1.0)
    for state in (ages, classes):
        state.observe([rank], [False])
        state.advance(sync=False)
    return [ages.age.tolist(), classes.age.tolist()]


def errors(rank: int, world: int, *, case: str) -> list[str]:
    """Return what each process was told, and where it stood after it was told and went on."""
    told = []
    state = _at_odds(case, rank)
    for _ in range(2):
        try:
            state.advance()
            told.append("went on")
        except (ValueError, IndexError) as error:
            told.append(f"{type(error).__name__}: {error}")
    dist.barrier()  # nobody hangs in a collective that others have left
    return [*told, state.epoch]


def _at_odds(case: str, rank: int):
    if case == "labels":
        return aol.SampleAges([0, 1, rank % 2])
    if case == "classes":
        return aol.ClassAges(3 + rank)
    if case == "runs":
        return aol.ErrorRates(3, rho=[0.5] * (1 + rank))
    if case == "margins":
        return aol.Margins(3, signal="error", width=0.5 + rank)
    if case == "epoch":
        ages = aol.SampleAges([0, 1])
        for _ in range(rank):
            ages.advance(sync=False)
        return ages
    if case == "stray label and answer":
        state = aol.Margins(3, labels=[0, 1, 2])
    else:
        state = aol.ClassAges(3) if case in ("stray label", "counted class") else aol.SampleAges([0, 1, 2])
    if case.endswith("class"):
        _unread(state.observe, [0, 1], [0, 2 if rank == 1 else 1])
    else:
        _unread(state.observe, [0, 5 if rank == 1 else 1], [1, 1])
    return state


def _unread(observe: Callable[..., None], *given: list) -> None:
    """Observe as on a CUDA device, whose values are not read."""
    readable, aol._check.readable = aol._check.readable, lambda _: False
    observe(*given)
    aol._check.readable = readable


def samplers(rank: int, world: int, *, kind: str, even: bool) -> list:
    """Two epochs, the second left in the middle and gone on with by others of its kind."""
    ages = aol.SampleAges([0, 0, 1, 1, 2] * 5, rho=0.5)
    ages.observe(range(25), [i % 3 == 0 for i in range(25)])
    ages.advance()

    def make():
        if kind == "AgeSampler":
            return aol.AgeSampler(ages, seed=3, even=even)
        if kind == "WeightedSampler":
            return aol.WeightedSampler(ages.weights, num_samples=23, seed=3, even=even)
        return aol.ShuffledSampler(25, seed=3, even=even)

    sampler = make()
    first, length = list(sampler), len(sampler)
    begun = list(itertools.islice(iter(sampler), 4))
    other = make()
    other.load_state_dict(sampler.state_dict())
    return [first, length, begun, list(other)]


def gradients(
    rank: int,
    world: int,
    *,
    divide_by: str,
    loss: str,
    alone: bool = False,
    nothing: bool = False,
    sharded: bool = False,
) -> list:
    """The gradients of one optimiser step over all that all processes hold, in micro-batches of uneven sizes.

    By DDP, or `sharded` by FSDP2.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    per_sample = getattr(aol, f"{loss}_loss")
    generator = torch.Generator().manual_seed(9)
    sizes = [[4, 1, 3], [2, 0, 7], [5, 5, 1]][:world]  # of each process
    total = sum(map(sum, sizes))
    x = torch.randn(total, 6, dtype=torch.float64, generator=generator)
    y = torch.randint(0, 3, (total,), generator=generator)
    weight = torch.rand(total, dtype=torch.float64, generator=generator) * 3
    weight[::5] = 0.0
    weight = weight * 0 if nothing else weight
    if alone:
        mean = aol.weighted_mean(per_sample(model(x), y), weight, divide_by=divide_by)
        mean.backward()
        return [mean.item(), *(p.grad.tolist() for p in model.parameters())]
    start = sum(map(sum, sizes[:rank]))
    edges = [start + sum(sizes[rank][:i]) for i in range(4)]
    parts = [slice(a, b) for a, b in itertools.pairwise(edges)]
    parallel = _sharded(model, world) if sharded else DistributedDataParallel(model)
    whole = aol.loss_total([weight[part] for part in parts], divide_by=divide_by)
    means = []
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        if sharded:
            parallel.set_requires_gradient_sync(last)
        with torch.enable_grad() if last or sharded else parallel.no_sync():
            mean = aol.weighted_mean(per_sample(parallel(x[part]), y[part]), weight[part], total=whole)
            mean.backward()
        means.append(mean.detach())
    shown = torch.stack(means).sum()
    dist.all_reduce(shown)
    found = [p.grad.full_tensor() if sharded else p.grad for p in model.parameters()]
    return [shown.item() / world, *(gradient.tolist() for gradient in found)]


def _sharded(model: nn.Sequential, world: int) -> nn.Module:
    """Shard each linear layer, then the rest, among all processes, as the documentation of FSDP2 does."""
    mesh = init_device_mesh("cpu", (world,))
    for layer in (each for each in model if isinstance(each, nn.Linear)):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def watched(rank: int, world: int, *, folder: str, resume: bool = False, epochs: int = 2) -> tuple:
    """Each process watches a network inside of DDP; alone, one process without it."""
    generator = torch.Generator().manual_seed(3)
    data = [
        torch.utils.data.TensorDataset(torch.randn(n, 4, generator=generator), torch.arange(n) % 3) for n in (23, 9)
    ]
    torch.manual_seed(0)
    net = nn.Linear(4, 3)
    model = DistributedDataParallel(net) if world > 1 else net
    with aol.Watch(folder, *data, resume=resume) as watch:
        for _ in range(epochs):
            net.weight.data.mul_(-1.5)
            watch.epoch(model)
    return str(watch.folder), watch.ages.epoch, watch.ages.age.tolist(), watch.ages.ema.tolist()


def criterion(rank: int, world: int, *, kind: str, alone: bool = False, compiled: bool = False, **settings) -> list:
    """Each process trains on its share, of another size than those of others; alone, one process on all shares."""
    loss = getattr(aol, kind)(4, **settings)
    call = torch.compile(loss, fullgraph=True, backend="aot_eager") if compiled else loss
    for step in range(8):
        shares = []
        for member in range(world) if alone else [rank]:
            generator = torch.Generator().manual_seed(100 * step + member)
            size = 0 if step == 2 and member == world - 1 else 3 + 2 * member + step
            label = (4 * torch.rand(size, generator=generator) ** 2).long()
            shares.append((torch.randn(size, 4, generator=generator) + torch.tensor([1.0, 0, 0, 0]), label))
        logits, label = (torch.cat(parts) for parts in zip(*shares, strict=True))
        call(logits.requires_grad_(), label).backward()
        assert logits.grad.isfinite().all()
    return [value.tolist() for value in loss.state_dict().values()]
