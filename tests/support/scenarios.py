"""What each process does in the tests with several processes. Every function also works alone, as the reference."""

from __future__ import annotations

import itertools

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


def sharded_ages(
    rank: int, world: int, *, own=False, padded=False, epochs=6, folder: str | None = None, **settings
) -> tuple[list, list]:
    """Each process holds an uneven share of the samples and observes samples of all shares, as `sample_ages` does.

    Returns the look at each epoch, and that of an object which takes over the state after three epochs. What is of
    samples is joined in rank order. With a folder, the first object has its state in a file there.
    """
    labels = _share_of_labels(rank, world)
    file = None if folder is None else f"{folder}/{rank}"
    ages = aol.ShardedSampleAges(labels, num_classes=5, file=file, **settings)
    assert ages._words.shape[1] == len(labels) + 1 < SIZE  # the state is that of the share
    found, resumed, other = [], [], None
    for epoch in range(epochs):
        if epoch == 3:
            other = aol.ShardedSampleAges(labels, num_classes=5, **settings)
            other.load_state_dict(ages.state_dict())
        for state, looks in ((ages, found), (other, resumed)):
            if state is not None:
                state.observe(*share(epoch, rank, world, SIZE, tuple(ages.rho.shape), own, padded))
                state.advance()
                looks.append([state.epoch, *(_joined(state, name, rank, world) for name in SAMPLE_LOOK)])
    return found, resumed


def _share_of_labels(rank: int, world: int) -> list[int]:
    sizes = [SIZE // world + 3 * (each - 1) for each in range(world - 1)]
    first = sum(sizes[:rank])
    stop = first + sizes[rank] if rank < world - 1 else SIZE
    return [i * i % 5 for i in range(SIZE)][first:stop]


def sharded_files_apart(rank: int, world: int, *, folder: str) -> list:
    """The last process loses its newest state; all open their files again, and train from there."""
    labels, file = _share_of_labels(rank, world), f"{folder}/{rank}"
    ages = aol.ShardedSampleAges(labels, num_classes=5, file=file)
    for epoch in range(4):
        ages.observe(*share(epoch, rank, world, SIZE, (), False, False))
        ages.advance()
    if rank == world - 1:
        ages._file.go_back()
    del ages
    ages, found = aol.ShardedSampleAges(labels, num_classes=5, file=file), []
    for epoch in range(ages.epoch, 6):
        ages.observe(*share(epoch, rank, world, SIZE, (), False, False))
        ages.advance()
        found.append([ages.epoch, *(_joined(ages, name, rank, world) for name in SAMPLE_LOOK)])
    return found


def sharded_rewind_refused(rank: int, world: int, *, folder: str) -> tuple[str, list]:
    """The last process has no older copy, as after a kill in `advance`; none goes back, and all train on."""
    labels, file = _share_of_labels(rank, world), f"{folder}/{rank}"
    ages, refusal = aol.ShardedSampleAges(labels, num_classes=5, file=file), ""
    for epoch in range(4):
        ages.observe(*share(epoch, rank, world, SIZE, (), False, False))
        ages.advance()
    ages.observe(*share(4, rank, world, SIZE, (), False, False))
    if rank == world - 1:
        ages._file._write_header(1 - ages._file._current, None)
        ages._file.previous = None
    try:
        ages.rewind(3)
    except ValueError as error:
        refusal = str(error)
    ages.advance()  # what was observed before the refusal is still there
    found = [[ages.epoch, *(_joined(ages, name, rank, world) for name in SAMPLE_LOOK)]]
    del ages
    ages = aol.ShardedSampleAges(labels, num_classes=5, file=file)
    ages.observe(*share(5, rank, world, SIZE, (), False, False))
    ages.advance()
    found.append([ages.epoch, *(_joined(ages, name, rank, world) for name in SAMPLE_LOOK)])
    return refusal, found


def sharded_file_refused(rank: int, world: int, *, folder: str) -> str:
    """One process cannot open its file; all raise an error."""
    labels, file = _share_of_labels(rank, world), f"{folder}/{rank}"
    if rank == 0:
        with open(file, "wb") as other:
            other.write(b"something else")
    try:
        aol.ShardedSampleAges(labels, num_classes=5, file=file)
    except ValueError as error:
        return str(error)
    return ""


def sharded_state_refused(rank: int, world: int, *, folder: str | None, other_epoch: bool) -> tuple[str, list]:
    """The last process gets a damaged state, or one of another epoch; none loads its state, and all train on."""
    labels, file = _share_of_labels(rank, world), None if folder is None else f"{folder}/{rank}"
    ages, states, refusal, found = aol.ShardedSampleAges(labels, num_classes=5, file=file), [], "", []
    for epoch in range(3):
        states.append(ages.state_dict())
        ages.observe(*share(epoch, rank, world, SIZE, (), False, False))
        ages.advance()
    ages.observe(*share(3, rank, world, SIZE, (), False, False))
    state = states[1]
    if rank == world - 1:
        state = states[0] if other_epoch else {**state, "ema": state["ema"] + 99}
    try:
        ages.load_state_dict(state)
    except ValueError as error:
        refusal = str(error)
    for epoch in (3, 4):
        if epoch > 3:  # what was observed before the refusal is still there
            ages.observe(*share(epoch, rank, world, SIZE, (), False, False))
        ages.advance()
        found.append([ages.epoch, *(_joined(ages, name, rank, world) for name in SAMPLE_LOOK)])
    return refusal, found


def _joined(state, name: str, rank: int, world: int) -> list:
    value = getattr(state, name)
    if name in ("class_age", "class_weight"):
        return plain([value])[0]
    shares = [None] * world
    dist.all_gather_object(shares, value)
    return plain([torch.cat(shares, dim=-1)])[0]


def recorder(rank: int, world: int, *, folder: str, kind: str = "SampleAges", alone: bool = False, **settings) -> None:
    """Each process records its share; alone, one process records all the shares in the order of ranks."""
    labels = torch.tensor([i * i % 5 for i in range(SIZE)])
    of_samples = kind == "SampleAges"
    ages = aol.SampleAges(labels, **settings) if of_samples else aol.ClassAges(5, **settings)
    runs = tuple(ages.rho.shape)
    written = aol.Recorder(folder, ages, resume=True)
    for epoch in range(6):
        for each in range(world) if alone else [rank]:
            index, _ = share(epoch, each, world, SIZE, (), False, padded=epoch % 2 == 0)
            generator = torch.Generator().manual_seed(1000 * epoch)  # a network answers whoever asks
            logits = torch.randn(*runs, SIZE, 5, generator=generator)[..., index, :]
            right = aol.is_correct(logits, labels[index].expand(*runs, -1))
            ages.observe(index if of_samples else labels[index], right)
            written.observe(index if of_samples else labels[index], logits)
            written.test(labels[index], logits.flip(-1))
        ages.advance()
        written.advance(lr=0.5)
    written.close()


def class_states(
    rank: int, world: int, *, kind: str, classes: int | None = 5, alone: bool = False, own: bool = False, **settings
) -> list:
    """Each process observes its share; where the classes are not known, each process meets others first."""
    state = getattr(aol, kind)(classes, **settings)
    runs = tuple(state.rho.shape)
    found = []
    names = ("age", "ema", "accuracy", "threshold") if kind == "ClassAges" else ("error_rate",)
    for epoch in range(6):
        for each in range(world) if alone else [rank]:
            high = classes or 2 + epoch * (each + 1)
            state.observe(*share(epoch, each, world, high, runs, own, padded=False))
        state.advance()
        found.append(seen(state, "class_weight", *names))
    return found


def margins(
    rank: int, world: int, *, classes=5, stored=False, alone=False, own=False, padded=False, **settings
) -> list:
    """As `class_states`; where the classes are not known, each process meets others first."""
    labels = [i * i % 5 for i in range(SIZE)] if stored else None
    state = aol.Margins(classes, labels=labels, width=0.1, **settings)
    runs = tuple(state.rho.shape)
    found = []
    for epoch in range(6):
        for each in range(world) if alone else [rank]:
            high = classes or min(5, 1 + each + epoch)
            key, right = share(epoch, each, world, SIZE if stored else high, runs, own, padded)
            truth = torch.tensor(labels)[key] if stored else key
            guess = (truth * 3 + torch.arange(right.shape[-1])) % high
            answer = torch.where(right, truth, guess)
            if state.signal == "probability":
                answer = (4 * torch.nn.functional.one_hot(answer, high) + torch.linspace(0, 1, high)).softmax(-1)
            state.observe(key, answer)
        state.advance(scale=1 - epoch / 10)
        found.append([seen(state, "offsets", "missed", "claimed"), state.ages and seen(state.ages, "age")])
    assert float(state.offsets.abs().max()) > 0.05
    return found


def far_index(rank: int, world: int) -> list[int]:
    """Indices beyond what float32 can tell apart: 2^24 and the odd ones after it."""
    size = 2**24 + 8
    ages = aol.SampleAges(torch.zeros(size, dtype=torch.uint8), rho=1.0, store="compact")
    ages.observe(torch.tensor([2**24 + 1 + 2 * rank]), torch.tensor([False]))
    ages.advance()
    return (ages.age == 2).nonzero().flatten().tolist()


def apart(rank: int, world: int) -> list:
    """Without sync each process keeps to itself; with a group, to the group."""
    group = dist.new_group([0, 1])
    alone, pair = aol.SampleAges([0, 0, 0], rho=1.0), aol.SampleAges([0, 0, 0], rho=1.0)
    classes = aol.ClassAges(3, threshold=1.0)
    for state in (alone, pair, classes):
        state.observe([rank], [False])
    alone.advance(sync=False)
    classes.advance(sync=False)
    if rank < 2:
        pair.advance(group=group)
    return [alone.age.tolist(), classes.age.tolist(), pair.age.tolist()]


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
    if case == "samples":
        return aol.SampleAges([0] * (3 + rank))
    if case == "labels":
        return aol.SampleAges([0, 1, rank % 2])
    if case == "rho":
        return aol.SampleAges([0, 1], rho=0.5 if rank else 0.25)
    if case == "epoch":
        ages = aol.SampleAges([0, 1])
        for _ in range(rank):
            ages.advance(sync=False)
        return ages
    if case == "classes":
        return aol.ClassAges(3 + rank)
    if case == "runs":
        return aol.ErrorRates(3, rho=[0.5] * (1 + rank))
    if case == "class epoch":
        ages = aol.ClassAges(3)
        for _ in range(rank):
            ages.advance(sync=False)
        return ages
    if case == "margins":
        return aol.Margins(3, signal="error", width=0.5 + rank)
    if case == "margin epoch":
        margins = aol.Margins(3, labels=[0, 1])
        for _ in range(rank):
            margins.advance(sync=False)
        return margins
    if case == "stray label and answer":
        margins = aol.Margins(3, labels=[0, 1, 2])
        margins._whole = lambda name, value, *_: torch.as_tensor(value)
        margins.observe([0, 5 if rank == 1 else 1], [1, 1])
        return margins
    if case == "stray label":
        ages = aol.ClassAges(3)
        ages._label = torch.as_tensor  # as on a CUDA device, where labels are not read
        ages.observe([0, 5 if rank == 1 else 1], [False, False])
        return ages
    if case.endswith("class"):
        state = {"class": aol.SampleAges, "sharded class": aol.ShardedSampleAges, "counted class": aol.ClassAges}[case]
        ages = state([0, 1, 2], num_classes=3) if issubclass(state, aol.SampleAges) else state(3)
        readable, aol._check.readable = aol._check.readable, lambda _: False  # as on a CUDA device
        ages.observe([0, 1], [0, 2 if rank == 1 else 1])
        aol._check.readable = readable
        return ages
    assert case == "stray index"
    ages = aol.SampleAges([0, 1, 2])
    ages._index = lambda index: (torch.as_tensor(index), torch.as_tensor(index) >= 3)
    ages.observe([0, 5 if rank == 1 else 1], [False, False])
    return ages


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
