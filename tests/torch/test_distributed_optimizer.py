"""`spotmpi.torch.DistributedOptimizer` alone: it trains as the same loop without it does."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="no torch: python -m pip install torch")

import spotmpi  # noqa: E402
from spotmpi.torch import DistributedOptimizer  # noqa: E402
from spotmpi.training import process  # noqa: E402
from spotmpi.training.keeping import checkpoint_folder  # noqa: E402

GENERATOR = torch.Generator().manual_seed(5)
X = torch.randn(64, 5, generator=GENERATOR)
Y = torch.randint(0, 3, (64,), generator=GENERATOR)


def module() -> Any:
    """One with layers, batch normalisation and a parameter without dimensions."""
    torch.manual_seed(1)
    layers = torch.nn.Linear(5, 8), torch.nn.BatchNorm1d(8), torch.nn.PReLU(), torch.nn.Linear(8, 3)
    return torch.nn.Sequential(*layers)


def loss_of(of: Any, batch: Any) -> Any:
    """The mean cross-entropy over a batch, where the module is."""
    where = next(of.parameters()).device
    return torch.nn.functional.cross_entropy(of(X.to(where)[batch]), Y.to(where)[batch])


def train_both(
    opt: Any, trained: Any, usual: Any, plain: Any, passes: int = 1, scheduler: Any = None
) -> None:
    """Train one module by ``opt``, and another one by its ``usual`` optimizer, on equal batches."""
    for batch in opt.batches(64, batch_size=8, passes=passes):
        loss_of(trained, batch).backward()
        opt.step()
        usual.zero_grad()
        loss_of(plain, batch).backward()
        usual.step()
        if scheduler is not None:
            scheduler.step()


def differ(one: Any, other: Any) -> float:
    """How far two modules are apart, at most."""
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return max(float((a.detach().double() - b.detach().double()).abs().max()) for a, b in pairs)


O = torch.optim  # noqa: E741
OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (O.SGD, {"lr": 0.1}),
    "momentum": (O.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 1e-3}),
    "nesterov": (O.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "adam": (O.Adam, {"lr": 0.01, "amsgrad": True}),
    "adamw": (O.AdamW, {"lr": 0.01}),
    "adagrad": (O.Adagrad, {"lr": 0.1, "initial_accumulator_value": 0.5}),
    "rmsprop": (O.RMSprop, {"lr": 0.01, "momentum": 0.5, "centered": True}),
    "nadam": (O.NAdam, {"lr": 0.01}),
    "radam": (O.RAdam, {}),
    "adamax": (O.Adamax, {}),
    "adadelta": (O.Adadelta, {}),
    "asgd": (O.ASGD, {}),
    "rprop": (O.Rprop, {}),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_trains_as_the_loop_without_it_does(name: str) -> None:
    kind, known = OPTIMIZERS[name]
    plain, trained = module(), module()
    usual, inner = kind(plain.parameters(), **known), kind(trained.parameters(), **known)
    schedulers = [O.lr_scheduler.MultiStepLR(one, [3, 9], 0.5) for one in (usual, inner)]
    with DistributedOptimizer(inner, module=trained, schedulers=schedulers[1:]) as opt:
        train_both(opt, trained, usual, plain, 2, schedulers[0])
    assert opt.steps == 16
    assert differ(plain, trained) < 1e-6
    assert next(trained.parameters()).grad is None
    loss_of(trained, range(8)).backward()  # the module is an ordinary one again
    inner.step()


def test_groups_have_rates_of_their_own_and_frozen_parameters_stay() -> None:
    plain, trained = module(), module()
    optimizers = []
    for of in (plain, trained):
        of[3].bias.requires_grad_(False)
        groups = [
            {"params": of[0].parameters(), "lr": 0.2},
            {"params": [of[1].weight, of[3].weight]},
        ]
        optimizers.append(O.SGD(groups, lr=0.05, momentum=0.5))
    usual, inner = optimizers
    with DistributedOptimizer(inner, module=trained) as opt:
        train_both(opt, trained, usual, plain)
    assert differ(plain, trained) < 1e-6
    assert torch.equal(plain[3].bias, module()[3].bias)


def test_a_batch_may_be_computed_in_parts_and_gradients_may_lie_anywhere() -> None:
    plain, trained = module(), module()
    for of in (plain, trained):
        of[1].eval()
    usual, inner = O.AdamW(plain.parameters()), O.AdamW(trained.parameters())
    with DistributedOptimizer(inner, module=trained) as opt:
        for batch in opt.batches(64, batch_size=16):
            inner.zero_grad()  # to none: backward makes new arrays
            for part in (batch[:8], batch[8:]):
                (loss_of(trained, part) / 2).backward()
            opt.step(loss=1.5)
            assert opt.loss == 1.5
            usual.zero_grad()
            loss_of(plain, batch).backward()
            usual.step()
    assert differ(plain, trained) < 1e-5


class Tied(torch.nn.Module):
    """Has a weight that two layers share, a sparse one, and one that is not used."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.rows = torch.nn.Embedding(7, 3, sparse=True)
        self.first, self.second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.idle = torch.nn.Parameter(torch.ones(2))

    def forward(self, at: Any) -> Any:
        """Both layers."""
        return self.second(self.first(self.rows(at))).square().mean()


@pytest.mark.parametrize("overlap", [False, True], ids=["whole", "overlap"])
def test_shared_sparse_and_unused_parameters(overlap: bool) -> None:
    plain, trained = Tied(), Tied()
    usual, inner = O.SGD(plain.parameters(), lr=0.1), O.SGD(trained.parameters(), lr=0.1)
    with DistributedOptimizer(inner, module=trained, overlap=overlap) as opt:
        assert len(opt._moved) == 5
        for batch in opt.batches(7, batch_size=2, passes=2):
            trained(torch.from_numpy(batch)).backward()
            opt.step()
            usual.zero_grad()
            plain(torch.from_numpy(batch)).backward()
            usual.step()
    assert differ(plain, trained) < 1e-6
    assert torch.equal(trained.idle, torch.ones(2))


def test_a_step_with_a_gradient_that_is_not_finite_moves_nothing_and_the_scale_falls() -> None:
    trained = module()
    inner = O.AdamW(trained.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    plain, scales = module(), []
    usual = O.AdamW(plain.parameters())
    with DistributedOptimizer(inner, module=trained, scaler=scaler) as opt:
        for batch in opt.batches(64, batch_size=8):
            broken = opt.steps == 1
            before = trained[0].bias.detach().clone()
            scaler.scale(loss_of(trained, batch)).backward()
            if broken:
                trained[0].bias.grad[0] = torch.inf
            opt.step()
            scales.append(scaler.get_scale())
            assert torch.equal(before, trained[0].bias) == broken
            usual.zero_grad()
            loss_of(plain, batch).backward()  # which moves the running means in any case
            if not broken:
                usual.step()
    assert scales == [1024.0, 512.0, 512.0, 512.0, 1024.0, 1024.0, 1024.0, 2048.0]
    assert differ(plain, trained) < 1e-4


def test_a_state_that_was_loaded_before_counts() -> None:
    plain, trained = module(), module()
    usual, inner = O.Adam(plain.parameters(), lr=0.02), O.Adam(trained.parameters(), lr=0.02)
    for _ in range(3):
        usual.zero_grad()
        loss_of(plain, range(64)).backward()
        usual.step()
    trained.load_state_dict(plain.state_dict())
    inner.load_state_dict(usual.state_dict())
    with DistributedOptimizer(inner, module=trained) as opt:
        train_both(opt, trained, usual, plain)
    assert differ(plain, trained) < 1e-6


def test_tensors_are_cut_once_and_those_of_old_memory_are_dropped() -> None:
    trained = module()
    inner = O.Adam(trained.parameters(), lr=0.01)
    both = spotmpi.strategies.SSGD(), spotmpi.strategies.Hogwild(control=4)
    seen = []
    with DistributedOptimizer(inner, module=trained, strategies=both) as opt:
        for batch in opt.batches(64, batch_size=4):
            loss_of(trained, batch).backward()
            opt.step()
            opt.strategy = both[opt.steps // 4 % 2]
            seen.append({what: parts for what, (_, parts) in opt._mover._cut.items()})
    assert seen[0].keys() == {"params", "grads", "slot exp_avg", "slot exp_avg_sq"}
    assert seen[-1].keys() == seen[0].keys()
    assert all(seen[1][what] is seen[2][what] for what in seen[0])
    assert len({id(one["params"]) for one in seen}) > 2


def test_a_buffer_that_is_no_number_leaves_no_step_out() -> None:
    """Only gradients of a scaled loss are judged, wherever in a bucket they lie."""
    trained = module()
    trained[1].register_buffer("odd", torch.tensor([torch.nan, 1.0]))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    inner = O.SGD(trained.parameters(), lr=0.1)
    before = trained[0].weight.detach().clone()
    with DistributedOptimizer(inner, module=trained, scaler=scaler) as opt:
        for batch in opt.batches(8, batch_size=8):
            scaler.scale(loss_of(trained, batch)).backward()
            opt.step()
    assert scaler.get_scale() == 8.0
    assert not torch.equal(before, trained[0].weight)


def test_masks_stay_as_they_are() -> None:
    trained = module()
    mask = torch.full((2, 2), -torch.inf).triu(1)
    trained.register_buffer("infinite", mask.clone())
    trained.register_buffer("flags", torch.tensor([True, False]))
    inner = O.SGD(trained.parameters(), lr=0.1)
    with DistributedOptimizer(inner, module=trained) as opt:
        for batch in opt.batches(64, batch_size=8):
            loss_of(trained, batch).backward()
            opt.step()
    assert torch.equal(trained.infinite, mask)
    assert trained.flags.tolist() == [True, False]


@pytest.mark.parametrize("call", ["optimizer.step()", "scheduler.step()"])
def test_what_step_does_is_not_for_the_script_to_do(call: str) -> None:
    trained = module()
    optimizer = O.SGD(trained.parameters(), lr=0.1)
    scheduler = O.lr_scheduler.StepLR(optimizer, 3)

    calls = {"optimizer.step()": optimizer.step, "scheduler.step()": scheduler.step}

    def train() -> None:
        with DistributedOptimizer(optimizer, module=trained, schedulers=[scheduler]) as opt:
            for batch in opt.batches(64, batch_size=8):
                loss_of(trained, batch).backward()
                if opt.steps == 2:
                    calls[call]()
                opt.step()

    with pytest.raises(spotmpi.UsageError, match=rf"the script called {re.escape(call)}"):
        train()
    optimizer.step()


def test_a_compiled_module_trains_with_the_gradients_of_spotmpi() -> None:
    trained = module()
    quick = torch.compile(trained, backend="eager")
    inner = O.SGD(trained.parameters(), lr=0.1)
    before = loss_of(trained, range(64)).item()
    with DistributedOptimizer(inner, module=trained) as opt:
        for batch in opt.batches(64, batch_size=16, passes=3):
            loss = loss_of(quick, batch)
            loss.backward()
            opt.step(loss)
    assert loss_of(trained, range(64)).item() < before


def until_kept(folder: Path) -> None:
    """Wait until a checkpoint is there."""
    end = time.monotonic() + 60
    while not checkpoint_folder.some(folder):
        assert time.monotonic() < end
        os.sched_yield()


def test_a_training_resumes_with_its_optimizer_and_its_scheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept"
    began: list[int | None] = []  # the first step of each training
    monkeypatch.setenv("SPOTMPI_CHECKPOINT", str(kept))

    def train(stop_at: int | None) -> tuple[Any, float, float]:
        began.append(None)
        trained = module()
        inner = O.AdamW(trained.parameters(), lr=0.01)
        scheduler = O.lr_scheduler.OneCycleLR(inner, max_lr=0.1, total_steps=20)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=4)
        known: dict[str, Any] = {"module": trained, "schedulers": [scheduler], "scaler": scaler}
        with DistributedOptimizer(inner, **known) as opt:
            for batch in opt.batches(64, batch_size=8, passes=2):
                if began[-1] is None:
                    began[-1] = opt.steps
                scaler.scale(loss_of(trained, batch)).backward()
                opt.step()
                if opt.steps == stop_at:
                    until_kept(kept)  # by a thread, which would outlive this training here
                    raise KeyboardInterrupt
                if opt.steps == 9:
                    opt.save()
        return trained, inner.param_groups[0]["lr"], scaler.get_scale()

    whole = train(None)
    for file in kept.glob("*.h5"):
        file.unlink()
    monkeypatch.setattr(process, "_process", process.Process())
    with pytest.raises(KeyboardInterrupt):
        train(12)
    monkeypatch.setattr(process, "_process", process.Process())
    monkeypatch.setenv("SPOTMPI_RESUME", "1")
    again = train(None)
    assert began == [0, 0, 10]
    assert differ(whole[0], again[0]) == 0
    assert whole[1:] == again[1:]


def _plateau(inner: Any) -> tuple[Any, dict[str, Any]]:
    return inner, {"schedulers": [O.lr_scheduler.ReduceLROnPlateau(inner)]}


def _complex(of: Any) -> Any:
    of[0].weight = torch.nn.Parameter(of[0].weight.detach().to(torch.cfloat))
    return of


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda of: (3, {}), "optimizer must be one of torch.optim, not 3"),
        (lambda of: _plateau(O.SGD(of.parameters())), "ReduceLROnPlateau needs a measured value"),
        (lambda of: (O.LBFGS(of.parameters()), {}), "LBFGS does not move a parameter by a dense"),
        (lambda of: (O.SparseAdam(of.parameters()), {}), "SparseAdam does not move a parameter by"),
        (lambda of: (O.Adafactor(of.parameters()), {}), "Adafactor remembers row_var of shape"),
        (lambda of: (O.SGD(module().parameters()), {}), "is not one of the module's"),
        (lambda of: (O.SGD(_complex(of).parameters()), {}), "0.weight is torch.complex64: spotmpi"),
        (lambda of: (O.SGD(of.requires_grad_(False).parameters()), {}), "has no parameter that"),
        (
            lambda of: (O.SGD(of.parameters()), {"schedulers": [3]}),
            "schedulers has a int, expected",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused_in_a_sentence(make: Any, said: str) -> None:
    of = module()
    inner, known = make(of)
    with pytest.raises(spotmpi.UsageError) as refused:
        DistributedOptimizer(inner, module=of, **known)
    assert said in str(refused.value)
