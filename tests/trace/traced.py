"""Traces as a trainer writes them, made by hand: of a training that loses workers and gets one."""

from __future__ import annotations

from typing import Any

from spotmpi.trace.records import Record

__all__ = ["changed", "loss", "step", "trace"]

USUAL = 0.010
"""Seconds of a step."""
N = 12
"""Samples of a pass: three steps of four."""


def step(number: int, workers: list[int], at: float, seconds: float, **fields: Any) -> Record:
    """One, in which these workers share four samples of its pass."""
    first = 4 * (number % 3)
    dealt = [first + i for i in range(4)]
    share = -(-4 // len(workers))
    parts = [dealt[i * share : (i + 1) * share] for i in range(len(workers))]
    return {
        "event": "step",
        "at": at + 0.01,
        "step": number,
        "round": number,
        "generation": 0,
        "workers": workers,
        "contributions": [
            {"worker": w, "samples": part, "weight": len(part)}
            for w, part in zip(workers, parts, strict=True)
        ],
        "rate": 0.1,
        "loss": 1.0 / (number + 1),
        "seconds": seconds,
        "committed": at,
        "loop": 0,
        "pass": number // 3,
        "digest": f"{number:016x}",
        **fields,
    }


def loss(number: int, lost: list[int], survivors: list[int], at: float, ms: float) -> list[Record]:
    """What the survivors say of a loss in this step, and its leader."""
    told = {
        "generation": 1,
        "step": number,
        "came_ms": 0.0,
        "detect_ms": 5.0,
        "revoke_ms": 1.0,
        "reconcile_ms": 2.0,
        "accept_ms": 3.0,
        "restart_ms": 4.0,
        "total_ms": ms,
        "lost_steps": 0,
        "recomputed_gradients": 0,
        "settlement": "retried",
    }
    own = [
        {
            "event": "recovered",
            "at": at,
            "worker": worker,
            **told,
            "messages_sent": {str(worker): 3},
            "digest": f"{number:016x}",
        }
        for worker in survivors
    ]
    led = {"lost": lost, "verdict": "retry", "messages_sent": {str(survivors[0]): 3}}
    return [*own, {"event": "recovery", "at": at, **told, **led}]


def trace(steps: int = 30) -> list[Record]:
    """Of three workers; worker 1 dies in step 10, and 3 joins at step 20. It began at 100 s."""
    records: list[Record] = [
        {
            "event": "start",
            "at": 100.0,
            "time": 1.7e9,
            "workers": [0, 1, 2],
            "hosts": ["a", "a", "a"],
            "params": 9,
            "strategy": "SSGD()",
            "version": "0.1.0",
        }
    ]
    at, workers, generation = 100.0, [0, 1, 2], 0
    for number in range(steps):
        seconds = USUAL
        if number == 10:
            seconds, workers, generation = 0.050, [0, 2], 1
        at += seconds
        if number == 0:
            batches = {"loop": 0, "n": N, "batch_size": 2, "passes": steps // 3}
            records.append({"event": "batches", "at": at, "step": 0, **batches})
        if number == 10:
            records += loss(10, [1], [0, 2], at, 40.0)
            cause = {"worker": 1, "cause": "killed", "why": "SIGKILL"}
            records.append({"event": "cause", "at": at, **cause})
        if number == 20:
            workers, generation = [0, 2, 3], 2
            changed = {"generation": 2, "step": 20, "joined": [3], "left": [], "hosts": ["a"]}
            records.append({"event": "change", "at": at, **changed, "pause_ms": 1.5})
        records.append(step(number, list(workers), at, seconds, generation=generation))
    end = {"step": steps, "workers": workers, "outcome": "finished", "left_early": []}
    return [*records, {"event": "end", "at": at + 0.01, **end}]


def changed(records: list[Record], event: str, number: int, **fields: Any) -> list[Record]:
    """The same, but for some fields of the n-th record of a kind; of a negative n, from the end."""
    places = [place for place, record in enumerate(records) if record["event"] == event]
    found = list(records)
    found[places[number]] = {**found[places[number]], **fields}
    return found
