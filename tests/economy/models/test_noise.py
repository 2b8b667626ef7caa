"""What a batch that grows with the workers is worth to the loss."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from spotmpi.economy.models import profiles, ring
from spotmpi.economy.models.calibration import LossRun, fit_noise
from spotmpi.economy.models.ring import HostType, Ring, RingLoss

CURVE = RingLoss(g1=100, g3=500, g5=0.2, workers=1, noise=4)


def run(curve: RingLoss, workers: int, steps: int, chance: np.random.Generator) -> LossRun:
    """Losses as such a training would have them, 2 % of chance among them."""
    j = [float(step * workers) for step in range(steps)]
    losses = [curve.at(one, workers) * (1 + 0.02 * chance.standard_normal()) for one in j]
    return LossRun(workers, j, losses)


def test_four_workers_are_not_four_times_the_progress() -> None:
    """Of a noise of 4 batches four workers need (4 + 4) / (1 + 4) times the batches of one."""
    host = HostType(
        workers=1, cores=1, compute_s=1.0, exchange_s_per_worker=0.0, bandwidth_mbps=1e9
    )
    model = Ring("x", {"node": host}, 1.0, loss=CURVE)
    one, four = ({"node": count} for count in (1, 4))
    assert model.rate(four) == pytest.approx(4 * model.rate(one), rel=1e-6)
    assert model.iterations(four, 1.0) == pytest.approx(1.6 * model.iterations(one, 1.0))
    assert model.loss_after(four, model.iterations(four, 1.0)) == pytest.approx(1.0)
    seconds = [model.iterations(there, 1.0) / model.rate(there) for there in (one, four)]
    assert seconds[0] / seconds[1] == pytest.approx(2.5, rel=1e-6)


def test_without_a_noise_all_batches_count_alike() -> None:
    curve = RingLoss(g1=100, g3=500, g5=0.2)
    assert curve.iterations(1.0, 8) == curve.iterations(1.0, 1) == curve.iterations(1.0)


@pytest.mark.parametrize("noise", [1.0, 4.0, 20.0])
@pytest.mark.first("4.0")
def test_the_noise_comes_back_from_runs_of_several_sizes(noise: float) -> None:
    curve = RingLoss(g1=100, g3=500, g5=0.2, workers=1, noise=noise)
    chance = np.random.default_rng(0)
    found = fit_noise([run(curve, workers, 600, chance) for workers in (1, 2, 8)])
    assert found is not None
    fitted, off = found
    assert fitted.noise == pytest.approx(noise, rel=0.25)
    assert off < 0.03
    for workers in (1, 4, 16):
        wanted = curve.iterations(1.0, workers)
        assert fitted.iterations(1.0, workers) == pytest.approx(wanted, rel=0.08)


def test_runs_of_one_size_do_not_tell_it() -> None:
    chance = np.random.default_rng(0)
    assert fit_noise([run(CURVE, 4, 300, chance), run(CURVE, 4, 300, chance)]) is None
    assert fit_noise([run(CURVE, 4, 300, chance), run(CURVE, 6, 300, chance)]) is None
    assert fit_noise([]) is None
    assert fit_noise([run(CURVE, 1, 3, chance), run(CURVE, 4, 1, chance)]) is None, "no curve"


def test_it_is_kept_in_the_profile(tmp_path: Path) -> None:
    host = HostType(workers=2, cores=2, compute_s=0.1, exchange_s_per_worker=0.01)
    for curve in (CURVE, RingLoss(g1=1, g3=2, g5=0.1, workers=3)):
        path = tmp_path / "profile.yaml"
        path.write_text(ring.to_yaml(Ring("x", {"node": host}, 1.0, loss=curve), "a test"))
        read = profiles.load(path)
        assert isinstance(read, Ring)
        assert read.loss == curve
    assert "no noise: all batches count alike" in path.read_text()


def test_losses_of_single_batches_may_be_noisy() -> None:
    """Half of a loss is chance, as with small batches: what counts is where they are on average."""
    chance = np.random.default_rng(0)
    runs = [run(CURVE, workers, 1200 // workers, chance) for workers in (1, 2, 4)]
    noisy = [
        LossRun(
            one.workers,
            one.iterations,
            [loss * float(chance.uniform(0.2, 1.8)) for loss in one.losses],
        )
        for one in runs
    ]
    found = fit_noise(noisy)
    assert found is not None
    fitted, off = found
    assert fitted.noise == pytest.approx(4, rel=0.5)
    assert off < 0.15
