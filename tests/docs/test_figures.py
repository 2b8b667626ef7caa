"""The tables of docs/performance.md say what the samples in bench/results say."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

import pytest

from tests.docs.pages import DOCS, ROOT

PAGE = (DOCS / "performance.md").read_text(encoding="utf-8")
FLOATS = {"1 M": 1_000_000, "25.6 M": 25_600_000}


def results(name: str) -> Any:
    return json.loads((ROOT / "bench" / "results" / f"{name}.json").read_text(encoding="utf-8"))


def rows(title: str, table: int = 0) -> list[list[str]]:
    """The cells of a table of a section, its head left out."""
    section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    lines = re.findall(r"(?:^\|.*\|\n)+", section, re.MULTILINE)[table].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


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


def test_the_row_beside_the_peers_counts_from_the_kill() -> None:
    measured = recoveries()
    table = rows("A worker is killed: spotmpi and its peers")
    found = {re.sub(r"\W*(\w+ ?\w*).*", r"\1", row[0]): row[1:] for row in table}
    ours = next(row[1:] for row in table if row[0].startswith("**spotmpi**"))
    bare = next(row[1:] for row in table if row[0].startswith("bare ULFM, on"))
    assert len(found) > 5
    sizes = [(4, 1_000_000), (8, 1_000_000), (16, 1_000_000)]
    sizes += [(workers, 25_600_000) for workers, _ in sizes]
    for (workers, params), *cells in zip(sizes, ours, bare, strict=True):
        cell = measured[workers, params, 1]
        for text, side in zip(cells, ("spotmpi", "floor"), strict=True):
            assert close(
                shown(text), [median(one["total"] + one["dying"] for one in cell[side])]
            ), (workers, params, text)


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


def test_the_overhead_is_that_measured() -> None:
    measured = {(cell["workers"], cell["params"]): cell for cell in results("overhead")["cells"]}
    for workers, floats, bare, ours, over in rows("A step without a failure"):
        cell = measured.pop((int(workers), FLOATS[floats]))
        computed = [1e3 * median(pair[side] for pair in cell["pairs"]) for side in (0, 1)]
        assert close([*shown(bare), *shown(ours)], computed)
        low, high = map(float, shown(over.partition("%")[0]))
        assert (low, high) == pytest.approx(cell["percent"][1:], abs=0.5)
    assert measured == {}, "not on the page"


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


def test_what_parts_cost_is_what_was_measured() -> None:
    found = results("parts")
    section = PAGE.partition("\n## A step without a failure\n")[2].partition("\n## ")[0]
    section = section.replace("\n", " ")
    steps = re.search(
        r"took (\d+) % more before and (\d+) % more after with 2 workers, and (\d+) % before "
        r"and (\d+) % after with 4 workers: it became (\d+) % and (\d+) % slower",
        section,
    )
    recoveries = re.search(
        r"took ([\d.]+) ms before and ([\d.]+) ms after with 4 workers, "
        r"([\d.]+) and ([\d.]+) ms with 16",
        section,
    )
    assert steps is not None
    assert recoveries is not None
    in_place = {
        (side, cell): median(map(beside_in_place, (run[cell] for run in found["overhead"][side])))
        for side in ("before", "after")
        for cell in (0, 1)
    }
    cells = [in_place[side, cell] for cell in (0, 1) for side in ("before", "after")]
    slower = [in_place["after", cell] / in_place["before", cell] for cell in (0, 1)]
    assert close(steps.groups(), [100 * (ratio - 1) for ratio in (*cells, *slower)])
    totals = [
        median(total for run in found["recovery"][side] for total in run[cell]["spotmpi"])
        for cell in (0, 1)
        for side in ("before", "after")
    ]
    assert close(recoveries.groups(), totals)


def test_what_shared_memory_saves_is_what_was_measured() -> None:
    found = results("shared")["overhead"]
    section = PAGE.partition("\n## A step without a failure\n")[2].partition("\n## ")[0]
    since = section.partition("Since then")[2].replace("\n", " ")
    told = re.findall(r"(\d+) % (more|less) (?:before|after)", since)
    stated = [int(number) * (1 if word == "more" else -1) for number, word in told]
    cells = [
        [against_in_place(run[cell]) for run in found[side]]
        for cell in (0, 1)
        for side in ("before", "after")
    ]
    assert [[run[cell]["workers"] for cell in (0, 1)] for run in found["after"]] == [[2, 4]] * 2
    assert stated == [round(100 * (median(ratios) - 1)) for ratios in cells]


def test_what_gradients_in_place_save_is_what_was_measured() -> None:
    found = results("gradients")["cells"]
    section = PAGE.partition("\n## A step without a failure\n")[2].partition("\n## ")[0]
    section = section.partition("\nA script that computes its gradients")[2]
    rows = re.findall(r"^\| (\d+) \| ([\d.]+) M \| (.*?) \| (.*?) \| (.*?) \|$", section, re.M)
    assert [(int(row[0]), float(row[1]) * 1e6) for row in rows] == [
        (cell["workers"], cell["params"]) for cell in found
    ]
    for row, cell in zip(rows, found, strict=True):
        measured = [
            1e3 * median(seconds)
            for seconds in (cell["in_place"], [ours for _, ours in cell["pairs"]], cell["born"])
        ]
        assert close(row[2:], measured)


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


def test_narrowed_sums_are_those_measured() -> None:
    cells = {len(cell["workers"]): cell for cell in results("narrow")["cells"]}
    for hosts, line, wide, bf16, int8, mpi in rows("Sums between hosts", 1):
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
