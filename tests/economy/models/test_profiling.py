"""``spotmpi profile`` of traces: the table, the errors beside predictions, and the profile."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import pytest

from spotmpi import cli
from spotmpi.economy import reading
from spotmpi.economy.models import profiling, ring, step_times
from spotmpi.economy.models.ring import HostType, RingLoss
from spotmpi.errors import TraceError, UsageError
from spotmpi.strategies import SSGD

MEGABYTES = 4.0
HOST = HostType(2, 2, 0.010, 0.002, 0.004)


def arguments(*words: object) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    profiling.add_arguments(parser)
    return parser.parse_args([str(word) for word in words])


def write_trace(
    file: Path,
    workers: int,
    host: HostType = HOST,
    hosts: int = 1,
    params: int = 1_000_000,
    strategy: object = None,
    loss: RingLoss | None = None,
    count: int = 40,
) -> Path:
    """A trace of so many workers on each host, whose steps take exactly what the model says."""
    ids = list(range(hosts * workers))
    records: list[dict[str, object]] = [
        {
            "event": "start",
            "workers": ids,
            "hosts": [f"host{worker // workers}" for worker in ids],
            "params": params,
            "strategy": str(strategy or SSGD()),
        }
    ]
    records += [
        {
            "event": "step",
            "step": step,
            "workers": ids,
            "loss": None if loss is None else loss.at(step * len(ids), len(ids)),
            "seconds": 9.0 if step < step_times.WARM_UP else host.step(workers, hosts, MEGABYTES),
        }
        for step in range(count)
    ]
    file.write_text("".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records))
    return file


@pytest.fixture
def traces(tmp_path: Path) -> list[Path]:
    loss = RingLoss(20, 100, 0.5)
    return [write_trace(tmp_path / f"{n}.jsonl", n, loss=loss) for n in (1, 2, 4)]


def test_eight_workers_are_predicted_from_one_two_and_four_with_the_error_beside_it(
    traces: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert profiling.main(arguments(*traces, "--cores", 2)) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^4 +35 +30\.000 +30\.000 +[+-]0\.0 %  fitted$", shown, re.MULTILINE)
    # Of 1 and 2 workers on 2 cores nobody learns what a change of process costs: 26 ms, not 30.
    held = r"26\.000 +-13\.3 %  held out; from 1, 2, which do not tell crowding"
    assert re.search(held, shown)
    assert "error: 13.3 %, the worst of those held out" in shown
    assert "predicted: 8 workers: 66 ms a step, 121.2 batches/s (error 13.3 %)" in shown
    (g3, g1, g5) = re.findall(r"^loss: (\S+) / \(j \+ (\S+)\) \+ (\S+) after", shown, re.M)[0]
    assert [float(g) for g in (g3, g1, g5)] == pytest.approx([100, 20, 0.5], rel=0.02)


def test_what_is_asked_for_is_predicted(
    traces: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    profiling.main(arguments(*traces, "--cores", 2, "--predict", 3, 16))
    assert re.findall(
        r"predicted: (\d+) workers: (\S+ \S+) a step.*\(error 13\.3 %\)", shown(capsys)
    ) == [
        ("3", "28 ms"),
        ("16", "138 ms"),
    ]


def shown(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out


def test_the_profile_reads_back_and_predicts_the_same(tmp_path: Path, traces: list[Path]) -> None:
    file = tmp_path / "profile.yaml"
    profiling.main(arguments(*traces, "--cores", 2, "-o", file, "--instance", "c5.large"))
    model = ring.from_profile(reading.load(file))
    assert list(model.types) == ["c5.large"]
    assert model.error == pytest.approx(0.1333, rel=1e-3)
    assert model.rate({"c5.large": 1}) == pytest.approx(2 / 0.012, rel=1e-5)
    assert model.iterations({"c5.large": 1}, 1.0) == pytest.approx(180, rel=0.02)
    assert "from 1.jsonl 2.jsonl 4.jsonl" in file.read_text()


def test_without_a_file_the_profile_is_shown(
    traces: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    profiling.main(arguments(*traces, "--cores", 2))
    assert "\nmodel: ring\n" in shown(capsys)


def test_a_host_without_a_name_and_a_network_without_a_figure_are_said(
    tmp_path: Path, traces: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Else the first to say so is `spotmpi plan`, when it refuses the name, and more than one."""
    file = tmp_path / "profile.yaml"
    profiling.main(arguments(*traces, "--cores", 2, "-o", file))
    page = shown(capsys)
    assert "calls such a host 'local'; --instance NAME gives it its name in a price list" in page
    assert "not known: what several hosts cost, as no run was on several; add bandwidth_" in page
    profiling.main(arguments(*traces, "--cores", 2, "-o", file, "--instance", "c5.large"))
    assert "--instance" not in shown(capsys)


def test_one_size_says_what_it_does_not_tell(
    traces: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    profiling.main(arguments(traces[2], "--cores", 2))
    page = shown(capsys)
    assert "error: nobody has compared; runs with three numbers of workers" in page
    assert "not known: what a further worker on a host costs" in page
    assert "predicted: 8 workers: nobody has measured what a further worker on a host costs" in page
    assert "# no error_percent: nobody has compared" in page


def test_two_sizes_are_predicted_from_and_nobody_has_compared(
    traces: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    profiling.main(arguments(*traces[:2], "--cores", 2))
    page = shown(capsys)
    assert "predicted: 4 workers: 26 ms a step, 153.8 batches/s (nobody has compared)" in page


def test_runs_on_several_hosts_are_predicted_for_more_hosts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host = HostType(2, 4, 0.010, 0.002, 0.0, 100.0, 0.001)
    sizes = [(1, 1), (1, 2), (2, 2), (4, 2), (8, 2)]
    files = [write_trace(tmp_path / f"{h}x{n}.jsonl", n, host, h) for h, n in sizes]
    profiling.main(arguments(*files, "--cores", 4, "--predict", 32))
    page = shown(capsys)
    step = 1e3 * host.step(2, 16, MEGABYTES)
    assert f"predicted: 32 workers, 2 on each of 16 hosts: {step:.3g} ms a step" in page
    with pytest.raises(UsageError, match=r"--predict 7: .* give a multiple of 2"):
        profiling.main(arguments(*files, "--cores", 4, "--predict", 7))


def test_what_larger_batches_are_worth_comes_from_runs_of_several_sizes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loss = RingLoss(20, 100, 0.5, workers=1, noise=3)
    files = [write_trace(tmp_path / f"{n}.jsonl", n, loss=loss, count=80) for n in (1, 2, 4)]
    profile = tmp_path / "p.yaml"
    assert profiling.main(arguments(*files, "--cores", 2, "-o", profile)) == 0
    shown = capsys.readouterr().out
    # (8 + 3) / (4 + 3)
    assert re.search(
        r"^noise: [23][.0-9]* batches of a worker; 8 workers need 1\.5[5-9] t", shown, re.M
    )
    curve = ring.from_profile(reading.load(profile)).loss
    assert curve is not None
    assert f"{curve.g3:.4g} / (j + {curve.g1:.4g}) + {curve.g5:.4g} after j batches of 4" in shown
    assert shown.count(" / (j + ") == 1, "one curve is written, and so one is shown"
    assert curve.workers == 4
    assert curve.noise == pytest.approx(3, rel=0.1)
    # Of one size, nobody knows.
    assert profiling.main(arguments(files[2], "--cores", 2, "-o", profile)) == 0
    assert "noise: not known, so all batches count alike" in capsys.readouterr().out
    assert "# no noise: all batches count alike" in profile.read_text()


def test_losses_that_the_curve_does_not_predict_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Cliff(RingLoss):
        def at(self, iterations: float, workers: float | None = None) -> float:
            return super().at(iterations, workers) if iterations < 32 else 0.01

    file = write_trace(tmp_path / "1.jsonl", 1, loss=Cliff(20, 100, 0.5))
    profiling.main(arguments(file))
    page = shown(capsys)
    assert "% off: too much; the profile has none" in page
    assert "\nloss: {" not in page


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "either traces, or a script"),
        (["1.jsonl", "--run", "train.py"], "either traces, or a script"),
        (["--run"], "either traces, or a script"),
        (["1.jsonl", "--steps", "9"], "-n and --steps are for --run"),
        (["1.jsonl", "--predict", "0"], "numbers of 1 or more"),
        (["1.jsonl", "--cores", "-1"], "numbers of 1 or more"),
        (["-n", "1", "0", "--run", "train.py"], "numbers of 1 or more"),
        (["--steps", "0", "--run", "train.py"], "numbers of 1 or more"),
        (["1.jsonl", "-o", "nowhere/x.yaml"], "no such folder; make it first"),
        (["1.jsonl", "-o", "."], "is a folder; name a file"),
        (["--run", "none.py"], "no script none.py"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_starts(
    words: list[str], complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        profiling.main(arguments(*words))


def test_traces_of_different_trainings_are_refused(tmp_path: Path, traces: list[Path]) -> None:
    other = write_trace(tmp_path / "other.jsonl", 8, params=2_000_000)
    with pytest.raises(UsageError, match="different trainings, with 4 and 8 MB"):
        profiling.main(arguments(*traces, other))


def test_a_strategy_that_the_model_does_not_know_is_refused(tmp_path: Path) -> None:
    other = write_trace(tmp_path / "other.jsonl", 8, strategy="Gossip()")
    with pytest.raises(UsageError, match=r"knows steps of SSGD, and these are of 'Gossip\(\)'"):
        profiling.main(arguments(other))


def test_a_trace_that_is_too_short_is_refused(tmp_path: Path) -> None:
    short = write_trace(tmp_path / "short.jsonl", 2, count=step_times.WARM_UP)
    with pytest.raises(UsageError, match="no steps to profile; give traces of runs with more"):
        profiling.main(arguments(short))


def test_no_trace_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "list.txt"
    file.write_text("milk\n")
    with pytest.raises(TraceError, match="line 1 is not a record: 'milk'"):
        profiling.main(arguments(file))
    with pytest.raises(TraceError, match=r"none\.jsonl cannot be read"):
        profiling.main(arguments(tmp_path / "none.jsonl"))


@pytest.mark.parametrize(("load", "warned"), [(0.1, False), (9.0, True)])
def test_a_busy_host_is_said_before_runs_are_measured_on_it(
    load: float,
    warned: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (load, load, load))
    script = tmp_path / "short.py"
    script.write_text("print('no steps')\n")
    assert cli.main(["profile", "-n", "1", "--run", str(script)]) != 0
    assert ("this host is busy (a load of 9.0 on" in capsys.readouterr().err) is warned
