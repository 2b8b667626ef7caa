"""Communicators are freed, and not while something of theirs may be on its way."""

from __future__ import annotations

from spotmpi.fabric.retired import QUIET, Retired


def test_what_is_out_of_use_is_freed_once_and_not_before_it_is_quiet() -> None:
    now, freed = [100.0], list[str]()
    retired: Retired[str] = Retired(lambda: now[0], freed.append)
    retired.add("data", None, "control")
    now[0] += QUIET / 2
    retired.add("next")
    retired.free()
    assert freed == []
    now[0] += QUIET / 2
    retired.free()
    retired.free()
    assert freed == ["data", "control"]
    now[0] += QUIET
    retired.free()
    assert freed == ["data", "control", "next"]
