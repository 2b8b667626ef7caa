"""docs/strategies.md says why `Best` goes by samples a second and not by the loss: held here."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from spotmpi.bench.measuring.tasks import TASKS, Network
from spotmpi.policies import Best
from spotmpi.strategies import SSGD

PAGE = (Path(__file__).parents[2] / "docs" / "strategies.md").read_text(encoding="utf-8")
WORKERS, RATE, TRIAL = 8, 0.05, 40


def falls(name: str, seed: int, trials: int) -> tuple[np.ndarray, np.ndarray]:
    """Train with synchronous SGD. Return how far the loss falls in each trial of 40 steps: in
    truth, on all samples; and as a line through the workers' mean losses has it."""
    task = TASKS[name]
    data, rng = task.data(), np.random.default_rng(seed)
    params = Network.initial(task, seed)
    true, told = [], []
    for step in range(trials * TRIAL + 1):
        if step % TRIAL == 0:
            true.append(Network.loss(params, data.x, data.y))
        some = rng.integers(0, len(data.x), WORKERS * task.batch_size)
        x, y = data.x[some], data.y[some]
        told.append(Network.loss(params, x, y))
        grads = Network.gradient(params, x, y)
        params = {key: value - np.float32(RATE) * grads[key] for key, value in params.items()}
    at = np.arange(TRIAL) - (TRIAL - 1) / 2
    lines = [(one * at).sum() / (at**2).sum() for one in np.reshape(told[:-1], (trials, TRIAL))]
    return -np.diff(true), -TRIAL * np.array(lines)


@pytest.mark.parametrize("name", ["digits", "teacher"])
def test_in_a_trial_the_loss_says_little_of_a_strategy(name: str) -> None:
    """One strategy against itself: it falls less in each trial, and what is seen of it varies."""
    runs = [falls(name, seed, 7) for seed in range(6)]
    true = np.mean([one for one, _ in runs], axis=0)
    noise = np.std([seen - one for one, seen in runs], axis=0)
    said = re.search(
        rf"On {name} it falls by ([\d.]+), ([\d.]+) and ([\d.]+) in the first three trials, and by "
        r"([\d.]+) in the seventh, where what is seen of it\s+varies by (\d\.\d+)",
        " ".join(PAGE.split()),
    )
    assert said is not None
    told = [float(one) for one in said.groups()]
    assert told == pytest.approx([*true[:3], true[6], noise[6]], abs=0.006)
    better = Best([SSGD()]).better
    assert 1 - true[1] / true[0] > 4 * better
    assert noise[6] / true[6] > 4 * better
