"""`DistributedOptimizer(overlap=True)`: gradients go to the others while `backward` goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="no torch: python -m pip install torch")

import spotmpi  # noqa: E402
from spotmpi.strategies import named  # noqa: E402
from spotmpi.torch import DistributedOptimizer  # noqa: E402
from tests.torch.test_distributed_optimizer import (  # noqa: E402
    O,
    differ,
    loss_of,
    module,
    train_both,
)

STRATEGIES = ["ssgd", "localsgd:h=3", "diloco:h=4,delay=2", "sma", "adpsgd:control=4", "lookahead"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_it_trains_as_without_it(strategy: str) -> None:
    plain, trained = module(), module()
    for of, overlap in ((plain, False), (trained, True)):
        inner = O.AdamW(of.parameters(), lr=0.01)
        known: dict[str, Any] = {"module": of, "overlap": overlap, "bucket_mb": 1e-4}
        with DistributedOptimizer(inner, strategy=named(strategy), **known) as opt:
            for batch in opt.batches(64, batch_size=8, passes=2):
                loss_of(of, batch).backward()
                opt.step()
    assert differ(plain, trained) == 0.0


@pytest.mark.parametrize(
    ("bucket_mb", "before"), [(1e-4, [0, 1, 1, 2, 2, 2, 3, 4]), (25.0, [0] * 8)]
)
def test_sums_begin_in_the_middle_of_backward(bucket_mb: float, before: list[int]) -> None:
    """Bucket by bucket, from the last layer on: the buffers come with the step."""
    trained = module()
    inner, begun = O.SGD(trained.parameters(), lr=0.1), []
    known: dict[str, Any] = {"module": trained, "overlap": True, "bucket_mb": bucket_mb}
    with DistributedOptimizer(inner, **known) as opt:
        for param in trained.parameters():
            param.register_hook(lambda _grad: begun.append(opt._participant._driver.started))
        for batch in opt.batches(8, batch_size=8):
            loss_of(trained, batch).backward()
            begun.append(opt._participant._driver.started)
            opt.step()
    assert begun == before


def test_parts_of_a_batch_are_added_up_first() -> None:
    plain, trained = module(), module()
    for of in (plain, trained):
        of[1].eval()
    usual, inner = O.SGD(plain.parameters(), lr=0.1), O.SGD(trained.parameters(), lr=0.1)
    with DistributedOptimizer(inner, module=trained, overlap=True) as opt:
        for batch in opt.batches(64, batch_size=16):
            with opt.no_sync():
                (loss_of(trained, batch[:8]) / 2).backward()
            (loss_of(trained, batch[8:]) / 2).backward()
            opt.step()
            usual.zero_grad()
            loss_of(plain, batch).backward()
            usual.step()
    assert differ(plain, trained) < 1e-5


def test_gradients_may_lie_anywhere() -> None:
    plain, trained = module(), module()
    usual, inner = O.Adam(plain.parameters()), O.Adam(trained.parameters())
    with DistributedOptimizer(inner, module=trained, overlap=True) as opt:
        for batch in opt.batches(64, batch_size=8):
            inner.zero_grad()  # to none: backward makes new arrays
            loss_of(trained, batch).backward()
            opt.step()
            usual.zero_grad()
            loss_of(plain, batch).backward()
            usual.step()
    assert differ(plain, trained) < 1e-6


def train(each: Callable[[Any, Any, Any], None]) -> None:
    """Train a module whose gradients are given early. ``each`` gets it, its training and a batch,
    and does what is done with the batch."""
    trained = module()
    inner = O.SGD(trained.parameters(), lr=0.1)
    with DistributedOptimizer(inner, module=trained, overlap=True) as opt:
        for batch in opt.batches(64, batch_size=8):
            each(trained, opt, batch)


def test_a_second_backward_is_refused() -> None:
    def each(trained: Any, _opt: Any, batch: Any) -> None:
        loss_of(trained, batch).backward()
        loss_of(trained, batch).backward()

    with pytest.raises(spotmpi.UsageError, match=r"again, .* in `with opt.no_sync\(\):`"):
        train(each)


@pytest.mark.parametrize("cleared", [False, True], ids=["in memory of rounds", "in its own"])
@pytest.mark.parametrize("way", ["clipped", "taken away"])
def test_a_gradient_that_is_changed_after_backward_is_refused(way: str, cleared: bool) -> None:
    taken = []

    def each(trained: Any, opt: Any, batch: Any) -> None:
        if cleared:
            trained.zero_grad()
        loss_of(trained, batch).backward()
        if opt.steps == 2 and way == "clipped":
            torch.nn.utils.clip_grad_norm_([trained[0].weight], 1e-3)
        elif opt.steps == 2:
            trained[0].weight.grad = None
        opt.step()
        taken.append(opt.steps)

    with pytest.raises(spotmpi.UsageError, match=r"0.weight was changed after backward\(\)"):
        train(each)
    assert taken == [1, 2]


def test_between_backward_and_step_nothing_else_is_asked() -> None:
    def each(trained: Any, opt: Any, batch: Any) -> None:
        loss_of(trained, batch).backward()
        opt.mean(1.0)

    with pytest.raises(spotmpi.UsageError, match=r"opt.mean\(\) came after opt.ready\(\)"):
        train(each)


def test_a_stop_in_the_middle_of_backward_ends_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    reached = []

    def stop(*_: object) -> None:
        raise spotmpi.Stopped("planted")

    def each(trained: Any, opt: Any, batch: Any) -> None:
        if opt.steps == 2:
            monkeypatch.setattr(opt, "_run", stop)
        loss_of(trained, batch).backward()
        reached.append(opt.steps)
        opt.step()

    with pytest.raises(spotmpi.Stopped, match="planted"):
        train(each)
    assert reached == [0, 1]


def test_after_the_block_the_module_is_an_ordinary_one() -> None:
    plain, trained = module(), module()
    usual, inner = O.SGD(plain.parameters(), lr=0.1), O.SGD(trained.parameters(), lr=0.1)
    with DistributedOptimizer(inner, module=trained, overlap=True) as opt:
        train_both(opt, trained, usual, plain)
    for _ in range(2):
        loss_of(trained, range(8)).backward()
    inner.step()


def test_on_a_device_it_is_refused() -> None:
    of = module().to("meta")
    with pytest.raises(spotmpi.UsageError, match="overlap=True needs a module in memory of the"):
        DistributedOptimizer(O.SGD(of.parameters()), module=of, overlap=True)
