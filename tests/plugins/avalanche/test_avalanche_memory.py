"""Ages come from what Avalanche's buffers hold; checkpoints, task heads, metrics; bad input is named."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from avalanche.benchmarks import split_online_stream
from avalanche.checkpointing import maybe_load_checkpoint, save_checkpoint
from avalanche.models import IncrementalClassifier, MTSimpleMLP
from avalanche.training import Replay
from avalanche.training.plugins import EvaluationPlugin, MIRPlugin, ReplayPlugin
from avalanche.training.storage_policy import (
    ClassBalancedBuffer,
    ExemplarsBuffer,
    ExperienceBalancedBuffer,
    ParametricBuffer,
    ReservoirSamplingBuffer,
)
from torch import Tensor, nn

import aol
from aol.plugins.avalanche import AgeMetric, AgePlugin
from tests.support.digit_streams import CLASSES, contents, naive, network, parameters, shifting_tail, split_digits

BUFFERS: dict[str, Callable[[], ExemplarsBuffer | None]] = {
    "none": lambda: None,
    "reservoir": lambda: ReservoirSamplingBuffer(80),
    "by class": lambda: ClassBalancedBuffer(80),
    "by experience": lambda: ExperienceBalancedBuffer(80),
    "parametric": lambda: ParametricBuffer(80, groupby="class"),
}


def accuracies(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Each class's accuracy, counted one by one; NaN where there is none."""
    with torch.no_grad():
        answers = model.eval()(x).argmax(1).tolist()
    found = []
    for label in range(CLASSES):
        right = [answer == label for answer, truth in zip(answers, y.tolist(), strict=True) if truth == label]
        found.append(sum(right) / len(right) if right else float("nan"))
    return torch.tensor(found, dtype=torch.float64)


@pytest.mark.parametrize("kind", BUFFERS)
def test_class_accuracies_are_those_on_what_the_buffer_holds(kind: str) -> None:
    age = AgePlugin(aol.ClassAges(CLASSES), memory=BUFFERS[kind](), batch_size=7)
    strategy = naive([age])
    benchmark = shifting_tail(4)
    for experience in benchmark.train_stream:
        strategy.train(experience)
        data = experience.dataset if age.memory is None else age.memory.buffer
        assert 0 < len(data) <= max(80, 80 if age.memory else len(experience.dataset))
        expected = accuracies(strategy.model, *contents(data))
        seen = ~expected.isnan()
        assert torch.equal(age.ages.accuracy[seen], expected[seen])
    assert age.ages.epoch == 4


def test_a_reservoir_is_filled_by_draws_that_go_on_from_one_experience_to_the_next() -> None:
    memory = ReservoirSamplingBuffer(200)
    strategy = naive([AgePlugin(aol.ClassAges(CLASSES), memory=memory)])
    kept = []
    for experience in shifting_tail(3).train_stream:
        strategy.train(experience, shuffle=False)  # nothing else draws
        kept.append(memory._buffer_weights[:20].tolist())
    assert len({tuple(each) for each in kept}) == 3
    assert len({weight for each in kept for weight in each}) > 30  # repeated draws would keep the same 20


def test_the_same_seed_fills_the_same_memory_whatever_else_is_drawn() -> None:
    found = []
    for other in (1, 2):
        age = AgePlugin(aol.ClassAges(CLASSES), memory=ReservoirSamplingBuffer(60), seed=4)
        strategy = naive([age])
        torch.manual_seed(other)
        strategy.train(shifting_tail(3).train_stream)
        found.append(contents(age.memory.buffer)[0])
    assert torch.equal(*found)


def test_a_buffer_that_knows_only_the_old_way_is_filled_that_way() -> None:
    class Old(ReservoirSamplingBuffer):
        post_adapt = ExemplarsBuffer.post_adapt  # does nothing

        def update(self, strategy: object, **kwargs: object) -> None:
            self.update_from_dataset(strategy.experience.dataset)  # type: ignore[attr-defined]

    memory = Old(40)
    naive([AgePlugin(aol.ClassAges(CLASSES), memory=memory)]).train(shifting_tail(1).train_stream)
    assert len(memory.buffer) == 40


def test_a_buffer_that_is_replayed_too_is_filled_once() -> None:
    memory = ExperienceBalancedBuffer(60)
    age = AgePlugin(aol.ClassAges(CLASSES, threshold=0.5), memory=memory)
    strategy = naive([ReplayPlugin(mem_size=60, storage_policy=memory), age])
    strategy.train(split_digits().train_stream)
    assert len(memory.buffer_groups) == 5
    x, y = contents(memory.buffer)
    assert torch.equal(age.ages.accuracy, accuracies(strategy.model, x, y))


def test_a_buffer_that_would_be_filled_too_late_is_refused_before_training() -> None:
    memory = ReservoirSamplingBuffer(60)
    age = AgePlugin(aol.ClassAges(CLASSES), memory=memory)
    strategy = naive([age, ReplayPlugin(mem_size=60, storage_policy=memory)])
    before = parameters(strategy.model)
    with pytest.raises(ValueError, match="plugins must have ReplayPlugin, which fills the memory, before AgePlugin"):
        strategy.train(split_digits().train_stream)
    assert torch.equal(parameters(strategy.model), before)


def test_replay_weighs_replayed_samples_too_and_forgets_less_than_naive() -> None:
    benchmark, found = split_digits(), []
    for make in (naive, replay):
        strategy = make([AgePlugin(aol.ClassAges(CLASSES, rho=0.5, threshold=0.5), memory=ClassBalancedBuffer(100))])
        strategy.train(split_online_stream(benchmark.train_stream, experience_size=32, seed=1))
        x, y = map(torch.cat, zip(*(contents(each.dataset) for each in benchmark.test_stream), strict=True))
        found.append(float(accuracies(strategy.model, x, y).mean()))
    assert found[1] > found[0] + 0.1


def replay(plugins: list[object]) -> Replay:
    model = network()
    return Replay(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        criterion=nn.CrossEntropyLoss(),
        mem_size=100,
        train_mb_size=32,
        plugins=plugins,
        evaluator=EvaluationPlugin(),
    )


def test_plug_ins_that_ask_the_criterion_themselves_still_work() -> None:
    mir = MIRPlugin(batch_size_mem=10, mem_size=60, subsample=20)
    strategy = naive([mir, AgePlugin(aol.ClassAges(CLASSES), memory=mir.storage_policy)])
    strategy.train(split_digits().train_stream)
    assert len(mir.storage_policy.buffer) == 60


def test_the_memory_is_examined_after_each_so_many_experiences() -> None:
    age = AgePlugin(aol.ClassAges(CLASSES), memory=ReservoirSamplingBuffer(50), every=3)
    strategy = naive([age])
    epochs = []
    for experience in shifting_tail(7).train_stream:
        strategy.train(experience)
        epochs.append(age.ages.epoch)
    assert epochs == [0, 0, 1, 1, 1, 2, 2]


def test_examining_leaves_modes_statistics_and_the_last_mini_batch_alone() -> None:
    class Watch(nn.BatchNorm1d):
        def forward(self, x: Tensor) -> Tensor:
            self.modes.add(self.training)
            return super().forward(x)

    norm, frozen = Watch(32), nn.Dropout(0.5)
    norm.modes = set()
    frozen.eval()
    age = AgePlugin(aol.ClassAges(CLASSES), memory=ReservoirSamplingBuffer(50))
    strategy = naive([age], model=network(norm, frozen))
    strategy.train(shifting_tail(1).train_stream)
    assert norm.modes == {True, False}
    assert norm.training

    frozen.eval()
    before, norm.modes = norm.running_mean.clone(), set()
    strategy.experience, strategy.mbatch = shifting_tail(1).train_stream[0], ["kept"]
    age._evaluate_memory(strategy, 0)
    assert norm.modes == {False}
    assert norm.training
    assert not frozen.training
    assert torch.equal(norm.running_mean, before)
    assert strategy.mbatch == ["kept"]


def mean_accuracy(accuracy: Tensor) -> Tensor:
    return accuracy.nanmean()


def test_forgotten_classes_do_not_grow_older_by_the_median_and_a_warning_says_so() -> None:
    age = AgePlugin(aol.ClassAges(CLASSES), memory=ReservoirSamplingBuffer(300))
    strategy = naive([age])
    with pytest.warns(UserWarning, match="positive-median"):
        strategy.train(split_digits().train_stream)
    assert age.ages.age.max() == 1


def test_forgotten_classes_grow_older_by_a_median_above_zero() -> None:
    age = AgePlugin(aol.ClassAges(CLASSES, threshold="positive-median"), memory=ReservoirSamplingBuffer(300))
    strategy = naive([age])
    strategy.train(split_digits().train_stream)
    forgotten = age.ages.accuracy == 0
    assert forgotten.sum() > CLASSES // 2
    assert (age.ages.age[forgotten] > 1).all()
    assert (age.ages.age[~forgotten] == 1).all()


@pytest.mark.parametrize("every", [1, 2])
def test_a_checkpoint_goes_on_to_the_same_end(tmp_path: Path, every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.optim, "sgd", sys.modules["torch.optim.sgd"], raising=False)  # dill looks there for SGD

    def start() -> tuple[object, AgePlugin]:
        ages = aol.ClassAges(CLASSES, rho=0.3, threshold=mean_accuracy)
        age = AgePlugin(ages, memory=ReservoirSamplingBuffer(60), every=every)
        return naive([age]), age

    torch.manual_seed(5)
    whole, age = start()
    whole.train(shifting_tail(6).train_stream)

    torch.manual_seed(5)
    first, _ = start()
    for experience in shifting_tail(6).train_stream[:3]:
        first.train(experience)
    save_checkpoint(first, tmp_path / "checkpoint.pkl")

    torch.manual_seed(99)
    second, _ = start()
    second, done = maybe_load_checkpoint(second, tmp_path / "checkpoint.pkl")
    assert done == 3
    for experience in shifting_tail(6).train_stream[done:]:
        second.train(experience)
    (resumed,) = [each for each in second.plugins if isinstance(each, AgePlugin)]
    assert torch.equal(resumed.ages.class_weight, age.ages.class_weight)
    assert torch.equal(contents(resumed.memory.buffer)[0], contents(age.memory.buffer)[0])
    assert torch.equal(parameters(second.model), parameters(whole.model))


def test_a_head_for_each_task_answers_for_its_own() -> None:
    torch.manual_seed(7)
    model = MTSimpleMLP(input_size=64, hidden_size=32)
    age = AgePlugin(aol.ClassAges(CLASSES, threshold=0.5), memory=ReservoirSamplingBuffer(200))
    strategy = naive([age], model=model, train_epochs=5)
    strategy.train(split_digits(task_labels=True).train_stream)
    assert float(age.ages.accuracy.median()) > 0.9  # one head for all would have forgotten all but the last task


def test_a_head_that_grows_with_the_classes_is_weighed_and_examined() -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), IncrementalClassifier(32, initial_out_features=2))
    age = AgePlugin(aol.ClassAges(CLASSES, threshold=0.5), memory=ClassBalancedBuffer(100))
    strategy = naive([age], model=model)
    stream = split_digits().train_stream
    strategy.train(stream[0])
    assert int((~age.ages.accuracy.isnan()).sum()) == 2
    strategy.train(stream[1:])
    assert not bool(age.ages.accuracy.isnan().any())


def test_a_loader_with_workers_examines_the_same() -> None:
    found = []
    for workers in (0, 1):
        torch.manual_seed(1)
        age = AgePlugin(aol.ClassAges(CLASSES), memory=ReservoirSamplingBuffer(50))
        strategy = naive([age])
        strategy.train(shifting_tail(1).train_stream, num_workers=workers)
        found.append(age.ages.accuracy)
    assert torch.equal(found[0].nan_to_num(-1), found[1].nan_to_num(-1))


def test_ages_are_a_metric_of_the_evaluator() -> None:
    evaluator = EvaluationPlugin(AgeMetric())
    age = AgePlugin(aol.ClassAges(CLASSES, rho=0.5))
    strategy = naive([age], evaluator=evaluator)
    last = strategy.train(shifting_tail(3).train_stream)
    by_class = {f"Smoothed_Age/Class{c:03d}": value for c, value in enumerate(age.ages.ema.tolist())}
    assert last.items() >= by_class.items()
    assert last["AoL/age_oldest_class"] == max(by_class.values())
    assert last["AoL/age_threshold"] == age.ages.threshold.item()
    assert last["AoL/train_worst_class"] == age.ages.accuracy.nan_to_num(1.0).min().item()
    steps, values = evaluator.get_all_metrics()["Smoothed_Age/Class004"]
    assert len(steps) == len(values) == 3
    assert sorted(set(steps)) == steps
    assert naive(evaluator=EvaluationPlugin(AgeMetric())).train(shifting_tail(1).train_stream) == {}


def test_error_rates_weigh_in_place_of_ages() -> None:
    rates = aol.ErrorRates(CLASSES)
    naive([AgePlugin(rates, memory=ReservoirSamplingBuffer(80))]).train(shifting_tail(3).train_stream)
    assert rates.epoch == 3
    assert float(rates.class_weight.max()) > 1.0


@pytest.mark.parametrize(
    ("settings", "kind", "reason"),
    [
        ({"ages": 10}, TypeError, "ages must be an aol.ClassAges or an aol.ErrorRates, not 10"),
        ({"ages": aol.SampleAges([0, 1])}, TypeError, "ages must be an aol.ClassAges"),
        ({"ages": aol.ClassAges(3, rho=[0.1, 0.5])}, ValueError, "ages must be of one run"),
        ({"memory": aol.Reservoir(10)}, TypeError, "memory must be one of Avalanche's buffers"),
        ({"memory": 500}, TypeError, "memory must be one of Avalanche's buffers .* or None, not 500"),
        ({"every": 0}, ValueError, "every must be a whole number of 1 or more, not 0"),
        ({"batch_size": 1.5}, TypeError, "batch_size must be a whole number of 1 or more, not 1.5"),
        ({"divide_by": "class"}, ValueError, "divide_by must be one of 'weight', 'count', not 'class'"),
        ({"seed": -1}, ValueError, "seed must be a whole number of 0 or more, not -1"),
        ({"seed": "one"}, TypeError, "seed must be a whole number"),
    ],
)
def test_bad_input_is_named(settings: dict[str, object], kind: type[Exception], reason: str) -> None:
    with pytest.raises(kind, match=reason):
        AgePlugin(**{"ages": aol.ClassAges(CLASSES), **settings})


def test_two_of_them_on_one_strategy_are_refused() -> None:
    strategy = naive([AgePlugin(aol.ClassAges(CLASSES)), AgePlugin(aol.ClassAges(CLASSES))])
    with pytest.raises(ValueError, match="one AgePlugin at most"):
        strategy.train(shifting_tail(1).train_stream)


def test_an_empty_memory_leaves_the_ages_as_they_are() -> None:
    age = AgePlugin(aol.ClassAges(CLASSES), memory=ReservoirSamplingBuffer(0))
    naive([age]).train(shifting_tail(2).train_stream)
    assert age.ages.age.tolist() == [1] * CLASSES
