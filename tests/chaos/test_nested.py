"""Nested parameters, also of half precision, and micro-batches, whoever dies meanwhile."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import spotmpi
from spotmpi.optimizers import Momentum
from spotmpi.replay import check_exactly_once, check_replicas, replay
from spotmpi.trace.records import read
from tests.chaos import nested
from tests.running import Running

SCRIPT = Path(__file__).parent / "nested.py"


@pytest.mark.promise("a death beside micro-batches")
def test_deaths_between_micro_batches_and_in_an_all_reduce_and_one_that_comes(
    tmp_path: Path,
) -> None:
    """A worker dies with two of three micro-batches accumulated: others are dealt its samples."""
    trace, kept = tmp_path / "trace.jsonl", tmp_path / "kept"
    options = ["--replace", "--revoke", "0@17", "--trace", trace, "--checkpoint", kept]
    command = [sys.executable, "-m", "spotmpi", "run", "-n", "3", *options, SCRIPT, "0"]
    running = Running(list(map(str, command)), tmp_path)
    try:
        running.until("TRAINS [34]")
        (tmp_path / "enough").touch()
        assert running.wait() == 0, running.output
    finally:
        running.close()
    told = [line.partition("FINAL ") for line in running.output.splitlines()]
    ends = {said.partition(" ")[2] for _, final, said in told if final}
    ((steps, fingerprint, passes),) = map(str.split, ends)
    records = list(read(trace))
    check_replicas(records)
    check_exactly_once(records, nested.SAMPLES, int(passes))
    again = replay(records, nested.start(), nested.gradient, Momentum(lr=0.01))
    assert fingerprint == str(nested.fingerprint(again))

    saved = spotmpi.load(kept)
    assert saved.step == int(steps)
    assert list(saved.params)[:3] == ["layers/0/weight", "layers/0/bias", "layers/1/weight"]
    np.testing.assert_array_equal(saved.params["head/scale/1"], again["head"]["scale"][1])
    assert nested.fingerprint(saved.like(nested.start())) == int(fingerprint)
    # What is kept was never rounded to half precision.
    assert saved.params["head/scale/0"].dtype == np.float32
    half = saved.params["head/scale/0"].astype(np.float16).astype(np.float32)
    assert (half != saved.params["head/scale/0"]).any()
