"""Torch trainings whose workers die, join, leave and resume, at any event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="no torch: python -m pip install torch")

import spotmpi  # noqa: E402
from spotmpi.replay import check_exactly_once, check_replicas  # noqa: E402
from spotmpi.strategies import named  # noqa: E402
from spotmpi.torch import DistributedOptimizer  # noqa: E402
from tests.simulated import Final, Job, Result, check_gradients  # noqa: E402
from tests.test_member import campaign, joined  # noqa: E402

GENERATOR = torch.Generator().manual_seed(3)
X = torch.randn(90, 4, generator=GENERATOR)
Y = X[:, :2].sum(1, keepdim=True)


class Centred(torch.nn.Module):
    """Takes away a running mean, as batch normalisation does; a batch of one sample will do."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Count, and follow the mean of the batch."""
        with torch.no_grad():
            self.mean.lerp_(x.mean(0), 0.1)
            self.seen += 1
        return x - self.mean


def module(seed: int) -> torch.nn.Module:
    """One with parameters, a running mean and a number, random for each worker."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 5), Centred(5), torch.nn.Tanh(), torch.nn.Linear(5, 1)
    )


def bits(of: torch.nn.Module) -> bytes:
    """Return all that the module holds."""
    return b"".join(one.double().numpy().tobytes() for one in of.state_dict().values())


@dataclass(frozen=True)
class Training(Job):
    """A torch script, with a scheduler that changes rates and momentum in every step."""

    samples: int = 90
    of: Callable[..., Any] = torch.optim.AdamW
    scaled: bool = False
    """Losses are multiplied, by more after every third step."""
    overlap: bool = False
    half: bool = False
    """Parameters and buffers are of half precision."""

    def script(self, worker: int) -> Final:
        """As the documentation has it."""
        gradients: Counter[int] = Counter()
        stopped, began = False, 0
        kind = torch.bfloat16 if self.half else torch.float32
        trained = module(worker).to(kind)
        optimizer = self.of(trained.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=500)
        scaler = torch.amp.GradScaler("cpu", 16.0, growth_interval=3) if self.scaled else None
        opt = DistributedOptimizer(
            optimizer,
            module=trained,
            schedulers=[scheduler],
            scaler=scaler,
            overlap=self.overlap,
            bucket_mb=1e-4,
            strategy=self.strategy(),
            seed=self.seed,
            scale_lr=self.scale_lr,
        )
        try:
            with opt:
                for _ in opt.passes(self.passes):
                    for batch in opt.batches(self.samples, self.batch_size):
                        rehearsal = opt.worker not in opt.workers
                        gradients[opt.steps] += not rehearsal
                        loss = ((trained(X[batch].to(kind)) - Y[batch]) ** 2).mean()
                        (loss if scaler is None else scaler.scale(loss)).backward()
                        opt.step(loss)
                        began = opt.steps if rehearsal else began
                with opt.agreed():
                    final = bits(trained)
        except spotmpi.Stopped:
            stopped, final = True, bits(trained)
        assert scheduler.last_epoch == opt.steps or stopped
        return Final(final, opt.steps, gradients, (), stopped, (), began, final)


def check(result: Result) -> None:
    """All that is promised of such a job."""
    finals = result.finals
    if not finals:
        return
    check_exactly_once(result.records, result.job.samples, result.job.passes)
    check_replicas(result.records)
    assert len({final.bits for final in finals.values()}) == 1
    if not result.of("resume"):
        check_gradients(result)
    for record in result.of("recovery") + result.of("recovered"):
        assert record["lost_steps"] == record["recomputed_gradients"] == 0


@pytest.mark.parametrize(
    ("strategy", "how"),
    [
        ("ssgd", {}),
        ("ssgd", {"scaled": True, "overlap": True}),
        ("ssgd", {"half": True, "overlap": True}),
        ("localsgd:h=3", {"scaled": True}),
        ("diloco:h=4,mix=0.5", {"half": True}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else value,
)
@pytest.mark.first("ssgd-", "ssgd-half-overlap", "diloco:h=4,mix=0.5-half")
def test_workers_die_join_and_leave_at_any_event(
    tmp_path: Path, strategy: str, how: dict[str, bool]
) -> None:
    calm = Training(tmp_path / "calm", 3, strategy=lambda: named(strategy), **how)
    results = campaign(calm, runs=6, holds=check)
    assert joined(results)
    assert any(result.of("recovery") for result in results)


@pytest.mark.campaign
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("first", range(50_000, 50_600, 200))
def test_a_long_campaign_of_gradients_that_are_given_early(
    tmp_path: Path, first: int, half: bool
) -> None:
    calm = Training(tmp_path / "calm", 4, overlap=True, half=half)
    assert joined(campaign(calm, runs=200, first=first, holds=check))
