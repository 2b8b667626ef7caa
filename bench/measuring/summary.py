"""What samples of recoveries say: the table, where the time goes, and which targets hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from spotmpi.bench.measuring.events import Cell, Sample
from spotmpi.bench.measuring.figures import size

__all__ = ["Measured", "Side", "phases", "table", "targets", "targets_of_ddp"]

Side = str
"""``spotmpi`` or ``floor``."""

Measured = Mapping[Cell, Mapping[Side, Sequence[Sample]]]

_SMALL = 1_000_000
_LARGE = 25_600_000
_CEILING = 300.0
_RATIO = 1.25
_LARGE_STALL = 100.0
_DDP_STALL, _DDP_LARGE_STALL = 50.0, 150.0


def table(measured: Measured) -> list[str]:
    """One line for each cell: medians and maxima of both sides, ms."""
    side = f" {'median':>6} {'max':>7} {'step':>5} {'stall':>5}"
    rows = [
        f"{'':22} |{'spotmpi, ms':^{len(side)}} |{'floor, ms':^{len(side)}} | ratio of",
        f"{'workers':>7} {'floats':>6} {'lost':>4} {'n':>2} |{side} |{side} | medians",
    ]
    for cell, sides in sorted(measured.items(), key=_order):
        ours, floor = sides["spotmpi"], sides["floor"]
        if not ours or not floor:
            rows.append(f"{cell.workers:7} {size(cell.params):>6} {cell.lost:4}  no samples")
            continue
        rows.append(
            f"{cell.workers:7} {size(cell.params):>6} {cell.lost:4} {len(ours):2} |"
            f"{_columns(ours)} |{_columns(floor)} | {_ratio(ours, floor):7.2f}"
        )
    return rows


def phases(measured: Measured) -> list[str]:
    """Where the time goes: the median of each phase of the last survivor's recovery, ms."""
    rows = []
    for cell, sides in sorted(measured.items(), key=_order):
        for side in ("spotmpi", "floor"):
            if not (samples := sides[side]):
                continue
            spans = {
                name: median(sample.phases[name] for sample in samples)
                for name in samples[0].phases
            }
            parts = [f"dying {median(sample.dying for sample in samples):.1f} +"]
            parts += [f"{name} {ms:.1f}" for name, ms in spans.items()]
            name = f"{cell.workers} workers, {size(cell.params)}, {cell.lost} lost"
            rows.append(f"{name:<28} {side:<7}  {'  '.join(parts)}")
    return rows


def targets(measured: Measured) -> list[tuple[str, bool]]:
    """Each target that these samples bear on, with what was seen, and whether it holds."""
    found = []
    for cell, sides in sorted(measured.items(), key=_order):
        ours, floor = sides["spotmpi"], sides["floor"]
        if not ours or not floor:
            continue
        name = f"{cell.workers} workers, {size(cell.params)} floats, {cell.lost} lost"
        if cell.params == _SMALL and cell.workers in (16, 32):
            worst = max(sample.total for sample in ours)
            found.append((f"{name}: maximum {worst:.0f} < {_CEILING:.0f} ms", worst < _CEILING))
        if cell.params == _SMALL:
            ratio = _ratio(ours, floor)
            found.append(
                (f"{name}: median {ratio:.2f} <= {_RATIO} times the floor's", ratio <= _RATIO)
            )
        if cell.params == _LARGE:
            stall, least = (median(s.stall for s in side) for side in (ours, floor))
            found.append(
                (f"{name}: stall {stall:.0f} <= the floor's {least:.0f} ms", stall <= least)
            )
            if cell.workers == 4:
                found.append(
                    (f"{name}: stall {stall:.0f} < {_LARGE_STALL:.0f} ms", stall < _LARGE_STALL)
                )
    return found


def targets_of_ddp(measured: Measured) -> list[tuple[str, bool]]:
    """The same for scripts of torch: the longest time beyond a step, from SIGKILL on."""
    found = []
    for cell, sides in sorted(measured.items(), key=_order):
        most = {_SMALL: _DDP_STALL, _LARGE: _DDP_LARGE_STALL}.get(cell.params)
        if most is not None and sides["spotmpi"]:
            worst = max(sample.dying + sample.stall for sample in sides["spotmpi"])
            name = f"{cell.workers} workers, {size(cell.params)} floats, {cell.lost} lost"
            said = f"{name}: at most {worst:.0f} < {most:.0f} ms beyond a step, from SIGKILL"
            found.append((said, worst < most))
    return found


def _order(item: tuple[Cell, object]) -> tuple[int, int, int]:
    cell, _ = item
    return cell.params, cell.workers, cell.lost


def _columns(samples: Sequence[Sample]) -> str:
    totals = [sample.total for sample in samples]
    step = median(sample.step for sample in samples)
    stall = median(sample.stall for sample in samples)
    return f" {median(totals):6.1f} {max(totals):7.1f} {step:5.0f} {stall:5.0f}"


def _ratio(ours: Sequence[Sample], floor: Sequence[Sample]) -> float:
    return median(s.total for s in ours) / median(s.total for s in floor)
