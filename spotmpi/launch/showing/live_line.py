"""How a job stands, in one line for people: pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spotmpi.launch.control_messages import Report
from spotmpi.launch.wording import count, duration, number

__all__ = ["banner", "line", "pace", "starts"]

_WORTH_SAYING = 2.0
"""Seconds that others wait for a worker before the line says so."""

_TRAINING = {"training", "trained"}
_AT_WORK = ("starting", "waiting", "joining", "training", "trained")


def line(status: Report, width: int | None = None) -> str:
    """The line, without its end; what matters least is left out if it is wider than ``width``."""
    parts = list(_parts(status))
    while width is not None and len(_joined(parts)) > width and len(parts) > 1:
        parts.remove(max(parts))
    return _joined(parts)[:width]


def starts(status: Report) -> bool:
    """Whether nobody trains yet."""
    return status.step is None or not _TRAINING.intersection(one.state for one in status.workers)


def banner(job: str, hosts: Sequence[str], resumed: int | None) -> str:
    """What is said when the training begins, of the hosts of all workers that train."""
    there = len(set(hosts))
    where = f"{there} host" + "s" * (there != 1)
    trains = "trains" if len(hosts) == 1 else "train"
    begins = "" if resumed is None else f"; resumed from step {resumed}"
    return f"job {job}: {count(len(hosts))} on {where} {trains}{begins}"


def pace(status: Report) -> str:
    """How fast it goes, and for how long; empty if that is not known."""
    said = []
    if status.steps_per_second is not None:
        said.append(f"{number(status.steps_per_second)} steps/s")
    if status.samples_per_second:
        said.append(f"{number(status.samples_per_second)} samples/s")
    if status.seconds_to_go is not None:
        said.append(f"{duration(status.seconds_to_go)} to go")
    return ", ".join(said)


def _joined(parts: Iterable[tuple[int, int, str]]) -> str:
    return ", ".join(text for _, _, text in parts)


def _parts(status: Report) -> Iterable[tuple[int, int, str]]:
    """How little each matters, where it stands, and what it says."""
    states = [worker.state for worker in status.workers]
    there = sum(state in _AT_WORK for state in states)
    if starts(status):
        ready = len(states) - states.count("starting")
        run = sum(one.pid is not None for one in status.workers)
        more = f" ({run} have started)" if run > ready else ""
        yield 0, 0, f"{ready} of {count(len(states))} ready{more} after {duration(status.seconds)}"
        return
    whole = status.steps_in_all
    yield 0, 0, f"step {status.step}" + ("" if whole is None else f" of {whole}")
    if status.loss is not None:
        yield 1, 1, f"loss {number(status.loss)}"
    if status.steps_per_second is not None:
        yield 4, 2, f"{number(status.steps_per_second)} steps/s"
    if status.samples_per_second:
        yield 6, 3, f"{number(status.samples_per_second)} samples/s"
    yield 2, 4, count(there)
    if status.seconds_to_go is not None:
        yield 3, 5, f"{duration(status.seconds_to_go)} to go"
    if status.checkpoint is not None:
        yield 5, 6, f"checkpoint {status.checkpoint.step}"
    waited = [one for one in status.workers if (one.awaited_seconds or 0.0) >= _WORTH_SAYING]
    if waited:
        longest = max(waited, key=lambda one: one.awaited_seconds or 0.0)
        seconds = longest.awaited_seconds or 0.0
        yield 2, 7, f"worker {longest.worker} awaited for {duration(seconds)}"
    if status.stopping:
        yield 1, 8, "stopping"
