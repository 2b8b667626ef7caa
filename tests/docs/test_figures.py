"""The tables of docs/performance.md say what the samples in bench/results say."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from tests.docs import pages
from tests.docs.pages import DOCS, ROOT

PAGE = (DOCS / "performance.md").read_text(encoding="utf-8")
FLOATS = {"1 M": 1_000_000, "25.6 M": 25_600_000}


def results(name: str) -> Any:
    return json.loads((ROOT / "bench" / "results" / f"{name}.json").read_text(encoding="utf-8"))


def rows(title: str, table: int = 0) -> list[list[str]]:
    """The cells of a table of a section, its head left out."""
    return pages.table(PAGE, title, table)


def shown(cell: str) -> list[str]:
    """The figures of a cell."""
    return re.findall(r"-?\d+(?:\.\d+)?", cell)


def close(said: Iterable[str], computed: Iterable[float]) -> bool:
    """Whether what is said is what was computed, rounded to the digits that are said."""
    return all(
        abs(float(one) - other) <= 0.502 * 10.0 ** -len(one.partition(".")[2])
        for one, other in zip(said, computed, strict=True)
    )


def recoveries() -> dict[tuple[int, int, int], Any]:
    """The measured recoveries, by workers, floats and losses; they are in milliseconds."""
    cells = results("recovery")["cells"] + results("recovery-8")["cells"]
    return {(cell["workers"], cell["params"], cell["lost"]): cell for cell in cells}


def extremes(samples: Iterable[float]) -> tuple[float, float]:
    taken = list(samples)
    return median(taken), max(taken)


def test_recoveries_are_those_measured() -> None:
    measured = recoveries()
    for workers, floats, lost, ours, floor in rows("A worker is killed, in more detail"):
        said = zip(lost.split(" / "), ours.split(" / "), floor.split(" / "), strict=True)
        for losses, spotmpi, bare in said:
            cell = measured.pop((int(workers), FLOATS[floats], int(losses)))
            for text, side in ((spotmpi, "spotmpi"), (bare, "floor")):
                assert close(shown(text), extremes(one["total"] for one in cell[side])), text
    assert measured == {}, "not on the page"


BESIDE = [(4, 1_000_000), (8, 1_000_000), (16, 1_000_000)]
BESIDE += [(workers, 25_600_000) for workers, _ in BESIDE]
"""The columns of the table with the peers: workers, floats."""


def from_the_kill(cell: Mapping[str, Any], side: str) -> list[float]:
    return [one["total"] + one["dying"] for one in cell[side]]


def test_the_rows_beside_the_peers_count_from_the_kill() -> None:
    table = {(row[0], row[1]): row[2:] for row in rows("A worker is killed: spotmpi and its peers")}
    assert len(table) > 8
    assert {machine for _, machine in table} == {"Xeon", "EPYC"}, "each row is of one"
    busy = results("recovery-busy")
    known = {(cell["workers"], cell["params"], cell["lost"]): cell for cell in busy["cells"]}
    for measured, machine, load in (
        (recoveries(), "Xeon", ""),
        (known, busy["machine"]["cpu"].removeprefix("AMD "), ", beside a load of 20"),
    ):
        for who, side in (("**spotmpi**", "spotmpi"), ("bare ULFM", "floor")):
            for (workers, params), text in zip(BESIDE, table[who + load, machine], strict=True):
                cell = measured.get((workers, params, 1))
                assert bool(text) == (cell is not None), (who, workers, params)
                if cell is not None:
                    assert close([text], [median(from_the_kill(cell, side))]), (who, workers, text)


def test_the_range_on_a_busy_machine_is_the_one_measured() -> None:
    told = re.search(
        r"spotmpi took (\d+) to (\d+) ms with 4 workers and (\d+) to (\d+) with 8, bare ULFM "
        r"(\d+) to (\d+) and (\d+) to (\d+)\.",
        " ".join(PAGE.split()),
    )
    assert told is not None
    taken = [
        from_the_kill(cell, side)
        for side in ("spotmpi", "floor")
        for cell in results("recovery-busy")["cells"]
    ]
    assert all(len(one) == 12 for one in taken)
    assert close(told.groups(), [end for one in taken for end in (min(one), max(one))])


def test_the_first_page_has_the_figures_of_this_one() -> None:
    """In seconds where they are many milliseconds."""
    said = (ROOT / "README.md").read_text(encoding="utf-8")
    there = {row[0]: row for row in rows("A worker is killed: spotmpi and its peers")}
    busy = {
        cell["workers"]: from_the_kill(cell, "spotmpi")
        for cell in results("recovery-busy")["cells"]
    }
    names = {
        "spotmpi": ["**spotmpi**"],
        "spotmpi, beside a load of 20": ["**spotmpi**, beside a load of 20"],
        "torchft: its shortest time-outs; tuned; defaults": [
            "torchft 0.2.0, as short as possible",
            "torchft 0.2.0, tuned (heartbeat 1 s, time-out 5 s)",
            "torchft 0.2.0, defaults",
        ],
        "torchrun elastic": ["torchrun elastic, torch 2.13 (gloo; restarts all)"],
    }
    for name, machine, *said_of in pages.table(said, "How fast"):
        told = [there[one] for one in names.pop(name)]
        assert {row[1] for row in told} == {machine}
        for column, workers in enumerate((4, 8)):
            ways = said_of[column].partition(" (")[0].split("; ")
            for way, row in zip(ways, told, strict=True):
                number, _, unit = way.partition(" ")
                if unit == "s":
                    assert close([number], [float(row[2 + column]) / 1000])
                else:
                    there_said = row[2 + column] or "not measured"
                    assert way in (f"{there_said} ms", there_said)
            if "(" in said_of[column]:
                found = shown(said_of[column].partition("(")[2])
                assert close(found, [min(busy[workers]), max(busy[workers])])
    assert names == {}, "not on the first page"
    medians = [int(one) for one in there["**spotmpi**"][2:5]]
    assert f"[{min(medians)} to {max(medians)}](#how-fast)" in said
    assert "beside a load of 20 we saw 12 to 432)" in said
    assert "Beside a load of 20 we have also seen 12 to 432 ms" in " ".join(PAGE.split())


def test_lost_hosts_are_those_measured() -> None:
    measured = {
        (cell["hosts"], cell["loss"]): cell["total_ms"] for cell in results("hosts")["cells"]
    }
    for name, *cells in rows("A host is lost"):
        for loss, text in zip(("process", "killed", "silent"), cells, strict=True):
            hosts = int(shown(name)[0])
            assert close(shown(text), extremes(measured.pop((hosts, loss)))), text
    assert measured == {}, "not on the page"


def test_joins_are_those_measured() -> None:
    measured = {(c["workers"], c["params"]): c["samples"] for c in results("join")["cells"]}
    for what, steps, pause, slowest, trains in rows("A worker joins"):
        workers, _, floats = what.partition(", ")
        samples = measured.pop((int(workers), FLOATS[floats]))
        said = [*shown(steps), *shown(pause), *shown(slowest), *shown(trains)]
        keys = ("calm", "after", "door", "slowest_lesson", "seconds")
        computed = [median(sample[key] for sample in samples) for key in keys]
        assert close(said, computed), what
    assert measured == {}, "not on the page"


def test_many_joins_are_those_counted() -> None:
    measured = {count["variant"]: count for count in results("joins")["counts"]}
    total = sum(len(count["seconds"]) for count in measured.values())
    for settings, joined, given_up, broken, seconds in rows("Many joins, beside busy processes"):
        count = measured.pop(re.findall("`(.*)`", settings)[0])
        said = [len(count["seconds"]), len(count["given_up"]), len(count["stuck"])]
        assert [joined, given_up, broken] == list(map(str, said)), settings
        assert close(shown(seconds), extremes(count["seconds"])), settings
    assert measured == {}, "not on the page"
    assert f"All {total} newcomers joined" in PAGE


def test_steps_are_those_measured() -> None:
    measured = {(cell["workers"], cell["params"]): cell for cell in results("step")["cells"]}
    for workers, floats, bare, ours, born, _ in rows("A step without a failure"):
        cell = measured.pop((int(workers), FLOATS[floats]))
        for said, seconds, times in ((ours, "spotmpi_s", ""), (born, "born_s", "_born")):
            took = 1e3 * median(cell[seconds])
            assert close(shown(said), [took, *cell[f"times_faster{times}"]])
        assert close([bare], [1e3 * median(cell["bare_s"])])
    assert measured == {}, "not on the page"


def test_what_safety_costs_is_what_was_measured() -> None:
    names = {
        "ResNet-50": "resnet50",
        "Inception-V3": "inception-v3",
        "BERT-base": "bert-base",
        "VGG-16": "vgg16",
    }
    cells = results("step-models")["cells"]
    measured = {(cell["what"], cell["workers"]): cell for cell in cells}
    for name, *said in rows("A step without a failure", 1):
        for workers, one in zip((2, 4, 8), said, strict=True):
            if one != "not enough memory":
                cell = measured.pop((names[name], workers))
                assert close(shown(one), cell["safety_percent"])
    assert measured == {}, "not on the page"


def test_sums_on_one_host_are_those_measured() -> None:
    cells = results("allreduce-here")["cells"]
    measured = {(cell["workers"][0], cell["what"]): cell for cell in cells}
    names = {"ResNet-50": "resnet50", "Inception-V3": "inception-v3", "BERT-base": "bert-base"}
    names |= {"VGG-16": "vgg16", "40 KB": "0.04", "4 MB": "4", "102 MB": "102.4", "400 MB": "400"}
    for workers, what, floor, ours, mpi, gloo in rows("A step without a failure", 2):
        cell = measured.pop((int(workers), names[what]))
        took = {side: 1e3 * median(cell[f"{side}_s"]) for side in ("spotmpi", "mpi", "gloo")}
        assert close([floor, ours], [1e3 * cell["floor_s"], took["spotmpi"]])
        for said, side in ((mpi, "mpi"), (gloo, "gloo")):
            figures = [took[side], took[side] / took["spotmpi"]]
            assert close(shown(said), figures[: len(shown(said))])


def test_predictions_are_those_measured() -> None:
    measured = {round(script["gradient_mb"], 2): script for script in results("profile")["scripts"]}
    for gradients, off, stated in rows("Predictions"):
        script = measured.pop(float(shown(gradients)[0]))
        assert close(shown(off), [abs(100 * script["error"])])
        assert close(shown(stated), [100 * script["stated_error"]])
    assert measured == {}, "not on the page"


def test_false_alarms_are_those_counted() -> None:
    found = results("alarms")
    assert found["alarms"] == []
    section = PAGE.partition("\n## False alarms\n")[2].partition("\n## ")[0].replace("\n", " ")
    told = re.search(
        r"was (\d+) ms \(median\), (\d+) ms \(99 %\) and (\d+) ms \(the longest of (\d+)\) "
        r"without the load, and (\d+), (\d+) and (\d+) ms with it\. .* was found after (\d+) ms",
        section,
    )
    assert told is not None
    without, beside = (
        sorted(silence for window in found["silences"][load] for silence in window.values())
        for load in ("without", "with")
    )
    computed = [
        *(median(without), without[int(0.99 * len(without))], without[-1], len(without)),
        *(median(beside), beside[int(0.99 * len(beside))], beside[-1], found["out"]),
    ]
    assert close(told.groups(), computed)


def beside_in_place(cell: Mapping[str, Any]) -> float:
    """How many times as long as the bare loop in place a step takes."""
    return median(ours / bare for ours, bare in zip(cell["spotmpi"], cell["in_place"], strict=True))


def test_what_came_before_is_what_was_measured() -> None:
    section = PAGE.partition("\n## A step without a failure\n")[2].partition("\n## ")[0]
    told = re.search(
        r"made steps of 1 M floats (\d+) % \(2 workers\) and (\d+) % \(4 workers\) slower .*"
        r" together (\d+) and (\d+) % shorter",
        section.replace("\n", " "),
    )
    assert told is not None
    parts, shared = results("parts")["overhead"], results("shared")["overhead"]
    slower = [
        median(map(beside_in_place, (run[cell] for run in parts["after"])))
        / median(map(beside_in_place, (run[cell] for run in parts["before"])))
        for cell in (0, 1)
    ]
    shorter = [
        median(against_in_place(run[cell]) for run in shared["after"])
        / median(against_in_place(run[cell]) for run in shared["before"])
        for cell in (0, 1)
    ]
    assert close(told.groups()[:2], [100 * (ratio - 1) for ratio in slower])
    assert close(told.groups()[2:], [100 * (1 - ratio) for ratio in shorter])


def against_in_place(cell: Mapping[str, Any]) -> float:
    """How many times as long as the bare loop in place a step takes."""
    ours = [ours for _, ours in cell["pairs"]]
    return median(one / bare for one, bare in zip(ours, cell["in_place"], strict=True))


def test_sums_between_hosts_are_those_measured() -> None:
    measured = {
        (len(cell["workers"]), cell["bytes"] / 1e6): cell
        for cell in results("allreduce")["cells"]
        if cell["bytes"] >= 2_000_000
    }
    for hosts, size, *said in rows("Sums between hosts"):
        cell = measured.pop((int(hosts), float(size)))
        times = cell["line_s"], median(cell["spotmpi_s"]), median(cell["mpi_s"])
        assert close(said, [1e3 * one for one in times])
    assert not measured


def test_sums_over_faster_lines_are_those_measured() -> None:
    cells = results("allreduce-fast")["cells"] + results("allreduce-several")["cells"]
    measured = {(tuple(cell["workers"]), cell["rate"], cell["bytes"] / 1e6): cell for cell in cells}
    rates = {"10 Gbit/s": "10gbit", "none": "unlimited", "1 Gbit/s": "1gbit"}
    for workers, rate, size, line, ours, mpi, gloo in rows("Sums between hosts", 1):
        there = tuple(map(int, shown(workers)))
        cell = measured.pop((there, rates[rate], float(size)))
        took = [1e3 * median(cell[f"{side}_s"]) for side in ("spotmpi", "mpi", "gloo")]
        assert close([ours, mpi, gloo], took)
        if line:
            assert close([line], [1e3 * cell["floor_s"]])
    assert measured == {}, "not on the page"


def test_narrowed_sums_are_those_measured() -> None:
    cells = {len(cell["workers"]): cell for cell in results("narrow")["cells"]}
    for hosts, line, wide, bf16, int8, mpi in rows("Sums between hosts", 2):
        cell = cells.pop(int(hosts))
        times = {name: 1e3 * median(cell[f"{name}_s"]) for name in ("spotmpi", "mpi")}
        assert close([line, wide, mpi], [1e3 * cell["line_s"], times["spotmpi"], times["mpi"]])
        for said, form in ((bf16, "bf16"), (int8, "int8")):
            took = 1e3 * median(cell[f"{form}_s"])
            assert close(shown(said), [took, times["spotmpi"] / took])
    assert not cells


def test_what_a_backward_pass_hides_is_what_was_measured() -> None:
    cells = results("overlap")["cells"]
    for row, cell in zip(
        rows("Gradients that travel during the backward pass"), cells, strict=True
    ):
        alone, after, during = (
            1e3 * median(cell[f"{side}_s"]) for side in ("alone", "after", "during")
        )
        assert close(row[1:4], [alone, after, during])
        assert close(shown(row[4]), [100 * (during / alone - 1)])
