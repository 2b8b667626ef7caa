"""Torch's profiler shows what calls take."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="no torch: python -m pip install torch")

from spotmpi.torch_hooks.profiles import show_in_profiles  # noqa: E402
from tests.launch.conftest import start  # noqa: E402, F401
from tests.torch.test_newcomers import installed  # noqa: E402

SCRIPT = Path(__file__).parent / "profiled.py"


def test_a_profiler_sees_calls_messages_and_the_sums_of_a_step(start: Any) -> None:  # noqa: F811
    installed()
    running = start("run", "-n", 2, SCRIPT)
    assert running.wait() == 0, running.output
    found = re.findall(r"SEEN (\d) (.+) END", running.output)
    seen = {int(rank): dict(ast.literal_eval(said)) for rank, said in found}
    both = {"spotmpi:all_gather_single": 1, "spotmpi:allreduce": 2, "spotmpi:barrier": 1}
    assert seen == {
        0: {**both, "spotmpi:sum": 2, "spotmpi:send": 1},
        1: {**both, "spotmpi:sum": 2, "spotmpi:recv": 1},
    }


class Counting:
    """It is called, with a profiler or without."""

    def add(self, number: int, times: int = 1) -> int:
        """Return a number of times."""
        return number * times

    also = add


def test_a_method_that_is_shown_does_what_it_did() -> None:
    show_in_profiles(Counting, ["add", "also"])
    assert Counting().add(3, times=2) == 6
    with torch.profiler.profile() as profile:
        assert Counting().also(3, times=2) == 6
        with pytest.raises(TypeError):
            Counting().add()  # type: ignore[call-arg]
    assert [one.key for one in profile.key_averages()] == ["spotmpi:add"]
