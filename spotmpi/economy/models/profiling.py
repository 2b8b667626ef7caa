"""``spotmpi profile``: the numbers of the ring model, from traces or from short runs."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

from spotmpi.economy.models import LOCAL, calibration, ring, step_times, trials
from spotmpi.economy.models.calibration import Fit, Measured, Size
from spotmpi.economy.models.ring import Ring, RingLoss
from spotmpi.economy.models.step_times import Told
from spotmpi.economy.quantities import percent, time_text
from spotmpi.errors import UsageError
from spotmpi.launch.start import temporary_job
from spotmpi.launch.wording import count
from spotmpi.trace import records as trace

__all__ = ["add_arguments", "main"]

_WORKERS, _STEPS = (1, 2, 4), 30

_LOSS_OFF = 0.2
"""A curve that is further off where it was held out is no prediction."""
_BUSY = 0.25
"""Processes that run for each core, from which on a measured step is not the script's alone."""

_DESCRIPTION = """\
Learn how long a step of a training takes, and predict it for other numbers of workers: from traces
(`spotmpi run --trace`), or from short runs that this command starts on this host, one after the
other. The command keeps one run back and predicts it from the others; how far off that is stands
beside each prediction as its error. With -o the result is a profile for `spotmpi plan` and `spotmpi
simulate cluster`."""

_EPILOG = f"""\
example:
  spotmpi profile one.jsonl two.jsonl four.jsonl --predict 8
  spotmpi profile -n 1 2 4 --predict 8 -o train.yaml --run train.py --passes 10

The first {step_times.WARM_UP} steps of a run do not count, nor the first behind a recovery or a \
change. A run
is ended as soon as there are enough steps. Traces do not tell how many cores a host has, nor the
size of a float (4 bytes are assumed).

The largest run is held out and predicted from those of half its size. Where these have no more
workers than cores they do not tell what crowding costs: -n 1 2 3 6 does on 2 cores."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command."""
    parser.usage = "spotmpi profile [options] TRACE... | --run SCRIPT [ARGS...]"
    parser.description = _DESCRIPTION
    parser.epilog = _EPILOG
    parser.add_argument(
        "traces", metavar="TRACE", nargs="*", type=Path, help="traces of runs of one script"
    )
    parser.add_argument(
        "--run",
        metavar="SCRIPT [ARGS...]",
        nargs=argparse.REMAINDER,
        help="start this script instead, on this host; what stands after it is for the script",
    )
    parser.add_argument(
        *("-n", "--workers"),
        metavar="N",
        type=int,
        nargs="+",
        help="with --run: numbers of workers (1 2 4)",
    )
    parser.add_argument(
        "--steps",
        metavar="S",
        type=int,
        help=f"with --run: steps to measure in each run ({_STEPS})",
    )
    parser.add_argument(
        "--predict",
        metavar="N",
        type=int,
        nargs="+",
        help="numbers of workers to predict (twice the largest run); on one host if the runs were",
    )
    parser.add_argument(
        "--cores", metavar="N", type=int, help="cores of the measured hosts (those of this one)"
    )
    parser.add_argument(
        "--instance",
        metavar="NAME",
        default=LOCAL,
        help=f"name of such a host in the profile, as in your price list ({LOCAL})",
    )
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write the profile here")


def main(options: argparse.Namespace) -> int:
    """Measure or read, print what was found, write the profile. Blocking, for as long as runs."""
    _check(options)
    if options.run:
        told = _measure(options.run, options.workers or _WORKERS, options.steps or _STEPS)
        name = Path(options.run[0]).name
        source = f"runs of {name}"
    else:
        told = [step_times.read(trace.read(path), str(path)) for path in options.traces]
        name = options.traces[0].stem
        source = " ".join(path.name for path in options.traces)
    _must_agree(told)
    runs = [run for one in told for run in one.runs]
    on = len(os.sched_getaffinity(0)) if options.cores is None else options.cores
    gradient_mb = told[0].gradient_mb
    fit = calibration.calibrate(runs, on, gradient_mb)
    curve, about_loss = _loss(told)
    model = Ring(name, {options.instance: fit.host}, gradient_mb, error=fit.error, loss=curve)
    text = ring.to_yaml(model, f"profiled {date.today()}, {on} cores, from {source}")
    said = "as this machine; --cores says otherwise" if options.cores is None else "as you say"
    print(f"{name}: {gradient_mb:.3g} MB of gradients, hosts of {on} cores ({said})\n")
    print(*_table(runs, fit, gradient_mb), "", sep="\n")
    print(*about_loss, "", sep="\n")
    print(*_predictions(options.predict, runs, fit, gradient_mb), sep="\n")
    if options.output is None:
        print("", text, sep="\n", end="")
    else:
        _write(options.output, text)
        print(f"\nthe profile is in {options.output}{_nameless(options.instance)}")
    return 0


def _nameless(instance: str) -> str:
    if instance != LOCAL:
        return ""
    return f", and calls such a host {LOCAL!r}; --instance NAME gives it its name in a price list"


def _check(options: argparse.Namespace) -> None:
    if bool(options.traces) == bool(options.run):
        raise UsageError("give either traces, or a script to run: --run SCRIPT [ARGS...]")
    if options.traces and (options.workers or options.steps):
        raise UsageError("-n and --steps are for --run; traces have the steps that they have")
    numbers = (*(options.workers or ()), *(options.predict or ()), options.steps, options.cores)
    if any(number is not None and number < 1 for number in numbers):
        raise UsageError("-n, --steps, --predict and --cores take numbers of 1 or more")
    if options.output is not None:
        if options.output.is_dir():
            raise UsageError(f"-o {options.output} is a folder; name a file in it")
        if not options.output.resolve().parent.is_dir():
            raise UsageError(f"-o {options.output}: there is no such folder; make it first")


def _measure(script: Sequence[str], workers: Sequence[int], steps: int) -> list[Told]:
    if not Path(script[0]).is_file():
        raise UsageError(f"there is no script {script[0]}; give the path of a Python file")
    cores = len(os.sched_getaffinity(0))
    if (load := os.getloadavg()[0]) > _BUSY * cores:
        print(
            f"spotmpi profile: this host is busy (a load of {load:.1f} on {cores} cores), so steps "
            "take longer than they would: end what else runs, or do not trust the figures",
            file=sys.stderr,
        )
    told = []
    with temporary_job.ended_by_signals():
        for number in dict.fromkeys(workers):
            print(f"a run with {count(number)} ...", flush=True)
            records = trials.trial(number, script, steps, math.inf)
            told.append(step_times.read(records, f"the run with {count(number)}"))
            if not told[-1].runs:
                raise UsageError(
                    f"{script[0]} ended before step {step_times.WARM_UP}, and the first "
                    f"{step_times.WARM_UP} do not count; have it take more steps"
                )
    print()
    return told


def _must_agree(told: Sequence[Told]) -> None:
    sizes = {one.gradient_mb for one in told}
    if len(sizes) > 1:
        shown = " and ".join(f"{size:.3g}" for size in sorted(sizes))
        raise UsageError(
            f"these are traces of different trainings, with {shown} MB of gradients; give those of "
            "one script with the same parameters"
        )
    for strategy in {one.strategy for one in told} - {step_times.SSGD}:
        raise UsageError(f"the ring model knows steps of SSGD, and these are of {strategy!r}")


def _table(runs: Sequence[Measured], fit: Fit, gradient_mb: float) -> Iterator[str]:
    """Each size: measured, fitted, and predicted from others where it was kept back."""
    steps = Counter[Size]()
    for run in runs:
        steps[run.size] += len(run.seconds)
    yield f"{'workers':<18} {'steps':>6} {'measured, ms':>13} {'predicted, ms':>14} {'error':>8}"
    for size, measured in fit.medians.items():
        fitted = fit.host.step(size[1], size[0], gradient_mb)
        first = f"{_size_text(size):<18} {steps[size]:6} {1e3 * measured:13.3f}"
        yield f"{first} {_columns(fitted, measured)}  fitted"
        for check in fit.checks:
            if check.size == size:
                others = ", ".join(map(_size_text, check.others))
                columns = _columns(check.predicted, check.measured)
                lacking = (
                    f", which do not tell {'or '.join(check.lacking)}" if check.lacking else ""
                )
                yield f"{'':39} {columns}  held out; from {others}{lacking}"
    yield ""
    yield f"error: {_error_text(fit)}"
    for one in fit.unknown:
        yield f"not known: {one}"
    if fit.host.bandwidth_mbps is None:
        yield (
            "not known: what several hosts cost, as no run was on several; add bandwidth_mbps and "
            "latency_s to the profile, or plans are of one host"
        )


def _columns(predicted: float, measured: float) -> str:
    return f"{1e3 * predicted:15.3f} {100 * (predicted / measured - 1):+6.1f} %"


def _error_text(fit: Fit) -> str:
    if fit.error is None:
        return (
            "nobody has compared; runs with three numbers of workers (1, 2 and 4, say) are needed"
        )
    return f"{100 * fit.error:.1f} %, the worst of those held out"


def _loss(told: Sequence[Told]) -> tuple[RingLoss | None, list[str]]:
    """The curve for the profile, and what to say of it. One that does not predict is none.

    It is that of the longest run, or of all together where they tell what a larger batch is worth.
    """
    longest = max(told, key=lambda one: max(one.iterations, default=0.0))
    curve = calibration.fit_loss(longest.iterations, longest.losses)
    off = calibration.loss_error(longest.iterations, longest.losses)
    if curve is None or off is None:
        return None, ["loss: no curve (too few losses, or they do not fall); the profile has none"]
    curve = replace(curve, workers=longest.workers)
    kept_back = f"the last quarter, held out, was {percent(off, 1)} off"
    end = f"{longest.iterations[-1]:.0f}"
    if off > _LOSS_OFF:
        why = f"{kept_back}: too much; the profile has none, train for longer"
        return None, [f"loss: {_formula(curve)}, fitted to {end}; {why}"]
    with_losses = [one for one in told if one.losses]
    runs = [calibration.LossRun(one.workers, one.iterations, one.losses) for one in with_losses]
    found = calibration.fit_noise(runs)
    if found is None or found[1] > _LOSS_OFF:
        return curve, [
            f"loss: {_formula(curve)}, fitted to {end}; {kept_back}",
            (
                "noise: not known, so all batches count alike; needed are runs long enough for a "
                "loss, one with twice the workers of another"
            ),
        ]
    pooled, far = found
    assert pooled.noise is not None  # `fit_noise` gives one
    return pooled, [
        (
            f"loss: {_formula(pooled)}, fitted to {len(runs)} runs, {percent(far, 1)} off it; of "
            f"the longest alone, {kept_back}"
        ),
        (
            f"noise: {pooled.noise:.3g} batches of a worker; {2 * pooled.workers:g} workers need "
            f"{pooled.factor(2 * pooled.workers):.2f} times the batches of {pooled.workers:g} for "
            "the same loss"
        ),
    ]


def _formula(curve: RingLoss) -> str:
    return (
        f"{curve.g3:.4g} / (j + {curve.g1:.4g}) + {curve.g5:.4g} after j batches of "
        f"{curve.workers:.3g} worker{'' if curve.workers == 1 else 's'}"
    )


def _predictions(
    asked: Sequence[int] | None, runs: Sequence[Measured], fit: Fit, gradient_mb: float
) -> Iterator[str]:
    hosts, each = max((run.size for run in runs), key=math.prod)
    for workers in asked or [2 * hosts * each]:
        if hosts == 1:
            size = (1, workers)
        elif workers % each == 0:
            size = (workers // each, each)
        else:
            raise UsageError(
                f"--predict {workers}: the largest run had {each} workers on each host; give a "
                f"multiple of {each}"
            )
        who = count(workers) if hosts == 1 else f"{workers} workers, {_size_text(size)}"
        try:
            seconds = fit.host.step(size[1], size[0], gradient_mb)
        except UsageError as error:
            yield f"predicted: {who}: {error}"
            continue
        bound = "nobody has compared" if fit.error is None else f"error {100 * fit.error:.1f} %"
        yield (
            f"predicted: {who}: {time_text(seconds)} a step, "
            f"{workers / seconds:.4g} batches/s ({bound})"
        )


def _size_text(size: Size) -> str:
    hosts, each = size
    return f"{each}" if hosts == 1 else f"{each} on each of {hosts} hosts"


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"-o {path} cannot be written: {error.strerror}; choose another file"
        ) from error
