"""The page about notices: its example runs as it stands there, and its names are right."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import spotmpi.testing
from spotmpi.settings import NOTICES

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "notice.md").read_text(encoding="utf-8")
TRAINING = """
import time

import numpy as np
import spotmpi
from spotmpi.optimizers import SGD
from spotmpi.strategies import SSGD

with spotmpi.Trainer({"w": np.zeros(4)}, optimizer=SGD(lr=0.1), strategy=SSGD()) as trainer:
    deadline = time.monotonic() + 8.0  # Azure is asked every second
    late = 0.0
    while not late:
        trainer.step({"w": np.ones(4)})
        late = trainer.mean(float(time.monotonic() > deadline))
"""


@pytest.mark.matrix
def test_the_example_runs(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "train.py").write_text(TRAINING)
    (tmp_path / "example.py").write_text(example)
    done = subprocess.run(
        [sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_every_source_is_explained() -> None:
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == set(NOTICES)


@pytest.mark.parametrize("fake", ["EC2", "GCE", "Azure"])
def test_the_names_that_it_gives_exist(fake: str) -> None:
    made = getattr(spotmpi.testing, fake)()
    for name in ("options", "environ", "endpoint", "preempt", "misbehave", "behave", "requests"):
        assert f".{name}" in PAGE
        assert hasattr(made, name)
    for owner, calls in re.findall(r"`(EC2|Azure)\(\)((?:\.\w+[^|]*?)+) \|", PAGE):
        names = re.findall(r"\.(\w+)", calls)
        assert len(names) > 2
        assert all(hasattr(getattr(spotmpi.testing, owner), name) for name in names)
