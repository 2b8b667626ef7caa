"""Modules whose parameters are of half precision: they are trained in float32."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="no torch: python -m pip install torch")

from spotmpi.strategies import named  # noqa: E402
from spotmpi.torch import DistributedOptimizer  # noqa: E402
from tests.torch.test_distributed_optimizer import OPTIMIZERS, O, X, Y, module  # noqa: E402

HALVES = [torch.bfloat16, torch.float16]


def loss_of(of: Any, batch: Any) -> Any:
    """The mean cross-entropy over a batch, whose layers compute as their parameters are."""
    return torch.nn.functional.cross_entropy(of(X[batch].to(of[0].weight.dtype)).float(), Y[batch])


class Usual:
    """A loop by hand: an optimizer moves copies in float32, to which the module is rounded."""

    def __init__(self, of: Any, kind: Any, **known: Any) -> None:
        self.of = of
        self.wide = copy.deepcopy(of).float()
        self.optimizer = kind(self.wide.parameters(), **known)

    def step(self, batch: Any) -> None:
        """Take one step."""
        self.of.zero_grad()
        loss_of(self.of, batch).backward()
        with torch.no_grad():
            for own, wide in zip(self.of.parameters(), self.wide.parameters(), strict=True):
                wide.grad = own.grad.float()
            self.optimizer.step()
            for own, wide in zip(self.of.parameters(), self.wide.parameters(), strict=True):
                own.copy_(wide)


@pytest.mark.parametrize("overlap", [False, True], ids=["whole", "overlap"])
@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "adamw", "rmsprop"])
def test_it_trains_as_a_loop_with_copies_in_float32(name: str, half: Any, overlap: bool) -> None:
    kind, known = OPTIMIZERS[name]
    plain, trained = module().to(half), module().to(half)
    usual = Usual(plain, kind, **known)
    inner = kind(trained.parameters(), **known)
    with DistributedOptimizer(inner, module=trained, overlap=overlap) as opt:
        for batch in opt.batches(64, batch_size=8, passes=2):
            loss_of(trained, batch).backward()
            opt.step()
            usual.step(batch)
    assert {one.dtype for one in trained.parameters()} == {half}
    for own, other in zip(plain.parameters(), trained.parameters(), strict=True):
        assert torch.equal(own, other)
    loss_of(trained, range(8)).backward()  # the module is an ordinary one again
    inner.step()


def test_steps_that_are_too_small_for_half_precision_count() -> None:
    trained = torch.nn.Linear(1, 1, bias=False).bfloat16()
    torch.nn.init.ones_(trained.weight)
    inner = O.SGD(trained.parameters(), lr=1e-3)
    with DistributedOptimizer(inner, module=trained) as opt:
        for _ in opt.batches(64, batch_size=8, passes=2):
            trained.weight.float().sum().backward()
            opt.step()
    assert trained.weight.item() == pytest.approx(1 - 16e-3, abs=4e-3)


@pytest.mark.parametrize("strategy", ["localsgd:h=3", "sma", "diloco:h=4"])
def test_the_agreed_model_is_shown_and_taken_back(strategy: str) -> None:
    trained = module().bfloat16()
    inner = O.AdamW(trained.parameters(), lr=0.01)
    with DistributedOptimizer(inner, module=trained, strategy=named(strategy)) as opt:
        for batch in opt.batches(64, batch_size=8):
            loss_of(trained, batch).backward()
            opt.step()
            own = [one.detach().clone() for one in trained.parameters()]
            with opt.agreed():
                kept = opt._training.model.layout.named(opt._training.model.agreed)
                shown = torch.from_numpy(kept["0.weight"]).bfloat16()
                assert torch.equal(trained[0].weight, shown)
            assert all(map(torch.equal, own, trained.parameters()))


def test_a_module_may_mix_them_and_a_loaded_state_counts() -> None:
    plain, trained = module(), module()
    for of in (plain, trained):
        of[3].bfloat16()
    usual, inner = O.Adam(plain.parameters(), lr=0.02), O.Adam(trained.parameters(), lr=0.02)
    x = torch.randn(8, 5)

    def loss(of: Any) -> Any:
        return of[3](of[:3](x).bfloat16()).float().square().mean()

    for _ in range(3):
        usual.zero_grad()
        loss(plain).backward()
        usual.step()
    trained.load_state_dict(plain.state_dict())
    inner.load_state_dict(usual.state_dict())
    before = {name: one.clone() for name, one in trained.state_dict().items()}
    with DistributedOptimizer(inner, module=trained) as opt:
        for name, one in trained.state_dict().items():
            assert torch.equal(one, before[name])
        loss(trained).backward()
        opt.step()
    usual.zero_grad()
    loss(plain).backward()
    usual.step()
    for name, one in plain.state_dict().items():
        found = trained.state_dict()[name]
        assert found.dtype == one.dtype
        assert torch.allclose(found.float(), one.float(), atol=0.01 if "3." in name else 1e-6)
