"""docs/strategies.md: its names and numbers are those of the code, and what it shows works."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import pytest

import spotmpi
from spotmpi.bench import accuracy, adaptive, exposed, memory, switches
from spotmpi.bench.convergence import Shape, against
from spotmpi.bench.stragglers import Run, gaps, speeds
from spotmpi.optimizers import SGD
from spotmpi.policies import Metrics
from spotmpi.policies import named as policy_named
from spotmpi.strategies import NAMES, Strategy, named
from tests.docs.pages import ROOT, blocks, table

PAGE = (Path(__file__).parents[2] / "docs" / "strategies.md").read_text(encoding="utf-8")
DECISION = (ROOT / "docs" / "adr" / "0046-strategies-change-between-two-rounds.md").read_text(
    "utf-8"
)


def test_the_table_has_every_strategy_with_what_is_usual() -> None:
    rows = re.findall(r"^\| `([a-z]+[^`]*)` \| `(\w+)", PAGE, re.MULTILINE)
    assert dict(rows) == {str(made().name): made.__name__ for made in NAMES.values()}


def test_the_first_page_counts_them() -> None:
    said = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    words = ("one two three four five six seven eight nine ten eleven twelve thirteen").split()
    found = re.search(r"(\w+) strategies, (\w+) of them asynchronous", said)
    assert found is not None
    known = [make() for make in NAMES.values()]
    many = sum(one.asynchronous for one in known)
    assert [words.index(word) + 1 for word in found.groups()] == [len(known), many]


def test_what_asynchrony_is_worth_is_what_was_measured() -> None:
    said = table(PAGE, "Nobody waits: ADPSGD and Gossip")
    prose = " ".join(PAGE.split())
    longer = {name for name, _ in stragglers("stragglers-asynchronous")}
    for file in ("stragglers", "stragglers-asynchronous"):
        for name, some in stragglers(file):
            kept = f"{median(median(speeds(run)) for run in some):.2f}"
            if file == "stragglers" and name in longer:
                title = "a quorum" if "quorum" in name else f"`{name.partition(':')[0]}`"
                assert f"{kept} with {title}" in prose
                continue
            after, without = (1e3 * median(one) for one in zip(*map(gaps, some), strict=True))
            said.remove([f"`{name}`", kept, f"{after:.0f} ms", f"{without:.0f} ms"])
    assert said == [], "not measured"


def stragglers(file: str) -> list[tuple[str, list[Run]]]:
    """What a file of the bench has, by strategy."""
    path = ROOT / "bench" / "results" / f"{file}.json"
    found = json.loads(path.read_text(encoding="utf-8"))["runs"]
    return [
        (
            name,
            [
                Run(*({int(one): at for one, at in run[kind].items()} for kind in Run._fields))
                for run in runs
            ],
        )
        for name, runs in found.items()
    ]


def test_what_policies_come_to_is_what_was_measured() -> None:
    """By the rate of the links: each has a table."""
    section = PAGE.partition("\n### What policies come to\n")[2].partition("\n## ")[0]
    parts = re.split(r"^\| links of (\S+) Mbit/s \|", section, flags=re.MULTILINE)[1:]
    told = dict(zip(parts[::2], parts[1::2], strict=True))
    for file in (ROOT / "bench" / "results").glob("adaptive*.json"):
        found = json.loads(file.read_text(encoding="utf-8"))
        cells = {
            way: {int(many): some for many, some in cell.items()}
            for way, cell in found["cells"].items()
        }
        rate = found["rate"].replace("1gbit", "1,000mbit").removesuffix("mbit")
        rows = re.findall(r"^\| `(\S+)` \|(.*)\|$", told.pop(rate), re.MULTILINE)
        said = {way: [float(one) for one in row.split("|")] for way, row in rows}
        shares = adaptive.shares(cells)
        for way, cell in shares.items():
            middle = [median(cell[n]) for n in sorted(cell)]
            assert said.pop(way) == pytest.approx(middle, abs=0.00502)
        assert said == {}, "not measured"
        assert all(aim.holds for aim in adaptive.aims(shares))
    assert told == {}, "not measured"
    file = ROOT / "bench" / "results" / "policies-16s.json"
    cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
    alone = {way: median(cell["1"]) / median(cells["ssgd"]["1"]) for way, cell in cells.items()}
    assert (
        f"`diloco` did {alone['diloco:h=16']:.2f} of `ssgd` there, and `best` {alone['best']:.2f}"
        in PAGE
    )


def test_what_rounds_between_hosts_cost_is_what_was_measured() -> None:
    found = json.loads((ROOT / "bench" / "results" / "exposed.json").read_text(encoding="utf-8"))
    runs = {
        strategy: {
            kind: [
                exposed.Run({int(w): at for w, at in r["over"].items()}, r["sent"]) for r in some
            ]
            for kind, some in kinds.items()
        }
        for strategy, kinds in found["runs"].items()
    }
    said = table(PAGE, "DiLoCo in parts")
    for strategy, (shares, mb, of) in exposed.told(runs):
        assert of is not None
        lost = [f"{100 * shares[kind]:.1f} %" for kind in ("steady", "changing")]
        said.remove([f"`{strategy}`", *lost, f"{mb:.1f} MB", f"{of:.3f}"])
    assert said == [], "not measured"
    alone = 1e3 * exposed.alone_takes(runs)
    assert f"takes {alone:.0f} ms without any round" in PAGE
    took: dict[int, list[float]] = {}
    for run in runs[exposed._STREAMING]["steady"]:
        for over in run.over.values():
            for last, (begin, end) in enumerate(pairwise(over[64:]), 65):
                took.setdefault(last % 16, []).append(1e3 * (end - begin))
    usual = median(ms for some in took.values() for ms in some)
    assert f"The usual step takes {usual:.1f} ms" in PAGE
    sent, travel, arrival, later = (11,), (12, 13, 14), (15,), range(11)
    rows = table(PAGE, "DiLoCo in parts", 1)
    for places, row in zip((sent, travel, arrival, later), rows, strict=True):
        middle = {place: f"{median(took[place]):.1f} ms" for place in places}
        assert row[1] in (middle[places[-1]], f"{middle[places[0]]}, {middle[places[-1]]}")
        lost = sum(fmean(took[place]) - usual for place in places) / 16 / usual
        assert row[2] == f"{100 * lost:.2f} %"


def test_how_soon_policies_are_there_is_what_was_measured() -> None:
    path = ROOT / "bench" / "results" / "accuracy-digits.json"
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    took = {way: median(some.values()) for way, some in accuracy.by_way(cells, "digits").items()}
    assert set(took) == set(accuracy.WAYS)
    ends = {way: median(one["curve"][-1][1] for one in cells if one["way"] == way) for way in took}
    fastest = min(took.values())
    section = PAGE.partition("How much time is lost until a policy")[2].partition("![")[0]
    said = [
        [cell.strip() for cell in row.split("|")[1:-1]]
        for row in re.findall(r"^\| `.*", section, re.M)
    ]
    assert said == [
        [f"`{way}`", f"{took[way]:.1f}", f"{took[way] / fastest:.2f}", f"{100 * ends[way]:.1f}"]
        for way in sorted(took, key=lambda way: took[way])
    ]


def test_what_changes_of_the_strategy_cost_is_what_was_measured() -> None:
    found = json.loads((ROOT / "bench" / "results" / "switches.json").read_text(encoding="utf-8"))
    names, ms = found["strategies"], found["ms"]
    turns = [switches.Turn(**one) for one in found["turns"]]
    changes: dict[tuple[str, str], list[switches.Cost]] = {}
    for one in turns:
        for pair, cost in switches.costs(names, one):
            changes.setdefault(pair, []).append(cost)
    cost = {pair: median(one.change for one in some) for pair, some in changes.items()}
    few = sum(one <= ms for one in cost.values())
    (words,) = re.findall(r"(\d+) of (\d+) changes cost less than a step", PAGE)
    assert [*map(int, words)] == [few, len(cost)]
    (before, after), most = max(cost.items(), key=lambda item: item[1])
    assert f"the dearest, from `{before}` to `{after}`, {most:.0f} ms" in " ".join(PAGE.split())


def memories() -> list[Any]:
    """What the bench of optimizers' memories has found: a cell for each set, strategy and one."""
    files = sorted((ROOT / "bench" / "results").glob("memory-*.json"))
    found = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    assert found
    assert all(one["failures"] == [] and one["seeds"] == [1, 2, 3, 4, 5] for one in found)
    return [cell for one in found for cell in one["cells"]]


def memory_row(cell: Any) -> list[str]:
    """A cell as the page has it."""
    runs = cell["once"]

    def middle(way: str, figure: str) -> float:
        return median(run[figure] for run in runs[way].values())

    losses = [f"{middle(way, '10'):.3f}" for way in ("zero", "rising", "mean")]
    more = [memory.beside_zero(cell, "once", way, "accuracy") for way in ("rising", "mean")]
    accuracy = f"{100 * middle('zero', 'accuracy'):.1f}"
    known = [cell["set"], *(f"`{cell[name]}`" for name in ("strategy", "optimizer"))]
    return [*known, *losses, accuracy, *(one.say(1) for one in more)]


def test_what_becomes_of_the_optimizers_memory_was_measured() -> None:
    cells = memories()
    assert table(PAGE, "To change it under way", 1) == [memory_row(cell) for cell in cells]
    said = " ".join(PAGE.split())
    for plan, words in (("once", " rows"), ("often", "")):
        better = {}
        for cell in cells:
            found = memory.beside_zero(cell, plan, "mean", "accuracy")
            assert found.upper >= 0
            if found.lower > 0:
                name = "`{optimizer}` on {set} from `{strategy}`".format(**cell)
                better[name] = found.middle
        assert not any("adam" in one for one in better)
        most = f"by {max(better.values()):.1f} points at most: {', '.join(better)}"
        assert re.search(f"in {len(better)} of {len(cells)}{words}, {re.escape(most)}", said), most


def test_what_the_page_says_of_adam_after_a_change_was_measured() -> None:
    said, known = " ".join(PAGE.split()), []
    for cell in memories():
        if "adam" not in cell["optimizer"]:
            continue
        runs = cell["once"]
        zero, rising = (
            median(run["1"] for run in runs[way].values()) for way in ("zero", "rising")
        )
        assert rising < zero
        assert memory.beside_zero(cell, "once", "rising", "10").upper < 0
        assert memory.beside_zero(cell, "once", "mean", "10").upper < 0
        assert memory.beside_zero(cell, "once", "mean", "loss").lower > 0
        known.append(memory.beside_zero(cell, "once", "rising", "accuracy"))
        if (cell["set"], cell["optimizer"]) == ("digits", "adam") and "local" in cell["strategy"]:
            assert f"it was {zero:.3f} one step after the change, and {rising:.3f} with" in said
    assert len(known) == 8
    assert sum(one.lower > 0 for one in known) == 1
    assert not any(one.upper < 0 for one in known)


def steps_ahead(cell: Any) -> int:
    """100 steps after the change: by how many steps the mean of the memories is further than a
    memory that begins again, at the speed of the latter."""
    zero, mean = (cell["once"][way] for way in ("zero", "mean"))
    speed = median(run["30"] - run["100"] for run in zero.values()) / 70
    return round(median(run["100"] - mean[seed]["100"] for seed, run in zero.items()) / speed)


def test_what_the_mean_of_memories_would_be_worth_was_measured() -> None:
    page, decided = (" ".join(text.split()) for text in (PAGE, DECISION))
    ahead: dict[tuple[str, str], list[int]] = {}
    for cell in memories():
        for run, mean in zip(
            *(cell["once"][way].values() for way in ("leader", "mean")), strict=True
        ):
            assert run["10"] > mean["10"], "the leader's memory is no better than the mean"
        ahead.setdefault((cell["optimizer"], cell["set"]), []).append(steps_ahead(cell))
    momentum = ahead["momentum", "digits"] + ahead["momentum", "teacher"]
    said = f"{min(momentum)} to {max(momentum)} steps"
    assert f"training is only {said} further, 100 steps after the change" in page
    digits, teacher = ahead["lamb", "digits"], ahead["lamb", "teacher"]
    assert max(digits) < 0
    assert f"it is {min(teacher)} to {max(teacher)} steps further on teacher, and not as" in page
    assert f"it saves {said} a change, for LAMB {max(teacher)} at most" in decided
    most = [
        max(one.middle for one in found if one.lower > 0)
        for found in (
            [memory.beside_zero(cell, plan, "mean", "accuracy") for cell in memories()]
            for plan in ("once", "often")
        )
    ]
    once, often = (f"{one:.1f}" for one in most)
    assert f"{once} points of accuracy at most, {often} if the strategy changes every 32" in decided


def test_what_the_page_says_of_each_optimizer_is_what_it_does() -> None:
    rows = {
        name: row[1] for row in table(PAGE, "To change it under way") for name in row[0].split(", ")
    }
    for make, _ in memory.OPTIMIZERS.values():
        said = rows.pop(f"`{make.__name__}`")
        assert said.startswith("begins again")
        assert (f"in {make.rises} steps" in said) == (make.rises > 0)
    assert rows == {}


def test_the_command_names_a_strategy() -> None:
    (given,) = re.findall(r"--strategy (\S+) train.py", PAGE)
    assert named(given).every == 64


def shown(name: str) -> dict[str, Any]:
    """What the page's code with a class of this name defines."""
    (code,) = (one for one in blocks(PAGE, "python") if f"class {name}" in one)
    assert sum(bool(line) for line in code.splitlines()) <= 15
    found: dict[str, Any] = {}
    exec(code, found)  # noqa: S102 - the page's own
    return found


def test_the_stage_that_it_shows_does_what_it_says() -> None:
    with spotmpi.Trainer(
        [np.full(3, 2.0)], optimizer=SGD(lr=0.5), strategy=shown("Decay")["strategy"]
    ) as trainer:
        trainer.step([np.ones(3)])
        np.testing.assert_allclose(trainer.params[0], (2.0 - 0.5) * (1 - 0.1 * 0.5))


def test_the_round_that_it_shows_does_what_it_says() -> None:
    with spotmpi.Trainer(
        [np.zeros(3)], optimizer=SGD(lr=0.5), strategy=shown("SignVote")["strategy"]
    ) as trainer:
        trainer.step([np.array([3.0, 0.0, -0.25])])
        assert trainer.params[0].tolist() == [-0.5, 0.0, 0.5]


def test_the_policies_that_it_names_are_there() -> None:
    names = re.findall(r"--policy (\S+:\S+|\S+/\S+) ", PAGE)
    assert len(names) > 2
    for name in names:
        assert policy_named(name).strategies


def test_the_policy_that_it_shows_decides_as_it_says() -> None:
    policy = shown("ByHosts")["ByHosts"]()
    often, seldom = policy.strategies
    known = {"steps": 100, "since": 50, "workers": 4}
    speeds = {"seconds": 5.0, "throughput": 90.0, "slowest": 1.0}

    def decided(hosts: int, share: float, now: Strategy) -> Strategy | None:
        found: Strategy | None = policy.decide(
            Metrics(now, hosts=hosts, share=share, **known, **speeds)
        )
        return found

    assert decided(1, 0.5, seldom) is often
    assert decided(2, 0.5, often) is seldom
    assert decided(2, 0.9, often) is decided(2, 0.9, seldom) is None
    with spotmpi.Trainer([np.zeros(3)], optimizer=SGD(lr=0.5), policy=policy) as trainer:
        for _ in range(40):
            trainer.step([np.ones(3)])
        assert trainer.strategy is often


def trained(run: Mapping[str, Any], name: str) -> str:
    """What the table calls a set: with its workers and losses, if these are not the usual ones."""
    shape = Shape(run["workers"], run["lost"], run["joined"])
    if shape == Shape():
        return name
    joined = f", {shape.spares} joined" if shape.spares else ""
    return f"{name}, {shape.lost} of {shape.workers} lost{joined}"


def measured() -> dict[tuple[str, str], Any]:
    """What the bench has found last, by what the table calls the set, and strategy."""
    files = (ROOT / "bench" / "results").glob("convergence-*.json")
    found = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    found.sort(key=lambda one: one["date"])
    assert all(one["failures"] == [] for one in found)
    cells: dict[tuple[str, str], Any] = {}
    for run in found:
        cells |= {(trained(run, cell["set"]), cell["strategy"]): cell for cell in run["cells"]}
    return cells


QUORUM = "diloco:h=16,momentum=0.5,quorum=0.75,grace=0.02"
SETS = ("digits", "teacher", "mnist", "mnist, 3 of 6 lost")
"""The columns of the tables of accuracies."""


def spread(points: Sequence[float]) -> str:
    """A median and the ends, as the tables have them: bold where more than a point is lost."""
    middle, least, most = (round(f(points), 1) + 0.0 for f in (median, min, max))
    said = f"{middle:+.1f} ({least:+.1f} .. {most:+.1f})"
    return f"**{said}**" if median(points) < -1 else said


def test_accuracies_are_those_measured() -> None:
    cells = measured()
    assert all(len(cell["with"]) == len(cell["without"]) == 5 for cell in cells.values())
    assert PAGE.count(f"| `--strategy` | {' | '.join(SETS)} |") == 2
    alone = {name: 100 * median(cells[name, "ssgd"]["without"].values()) for name in SETS}
    first, *others, last = (f"{alone[name]:.1f}" for name in SETS)
    assert f"reaches {first}, {', '.join(others)} and {last} % without revocations" in PAGE
    left = set(cells)
    for behind, changed in zip(
        table(PAGE, "How accurate"), table(PAGE, "How accurate", 1), strict=True
    ):
        assert behind[0] == changed[0]
        for name, said, change in zip(SETS, behind[1:], changed[1:], strict=True):
            cell = cells[name, behind[0].strip("`")]
            reached = 100 * median(cell["with"].values())
            assert said == f"{reached:.1f}: {spread(against(cell, cells[name, 'ssgd']))}"
            assert change == spread(against(cell))
            left.remove((name, cell["strategy"]))
    assert left == set(), "not on the page"


def test_a_line_says_with_how_many_workers_if_not_with_the_usual_ones() -> None:
    usual = {"workers": 8, "lost": 3, "joined": 2}
    assert trained(usual, "mnist") == "mnist"
    assert trained({**usual, "joined": 0}, "mnist") == "mnist, 3 of 8 lost"
    assert trained({"workers": 6, "lost": 3, "joined": 0}, "mnist") == "mnist, 3 of 6 lost"
    assert trained({"workers": 6, "lost": 3, "joined": 2}, "x") == "x, 3 of 6 lost, 2 joined"


def test_what_the_page_says_of_revocations_was_measured() -> None:
    changes = {key: against(cell) for key, cell in measured().items()}
    said = " ".join(PAGE.split())
    dear = {key for key, points in changes.items() if median(points) < -1}
    assert f"**Revocations cost more than a point in {len(dear)} of {len(changes)} places**" in said
    assert dear == {
        ("mnist, 3 of 6 lost", "sma"),
        ("mnist, 3 of 6 lost", "hogwild:control=16"),
    }
    worst = min(changes, key=lambda key: min(changes[key]))
    assert worst == ("mnist, 3 of 6 lost", "localsgd")
    assert f"worst lost {-min(changes[worst]):.1f} points (`localsgd`, 3 of 6 lost)" in said


def test_how_far_strategies_are_behind_is_what_was_measured() -> None:
    cells = measured()
    gaps: dict[str, dict[str, float]] = {}
    for (name, strategy), cell in cells.items():
        points = against(cell, cells[name, "ssgd"])
        gaps.setdefault(strategy, {})[name] = -median(points)
    near = {one for one, gap in gaps.items() if max(gap.values()) <= 1}
    assert near == {"ssgd", "lookahead", "gossip:control=16"}
    least, most = (f(gaps["easgd"].values()) for f in (min, max))
    assert f"`easgd` is {least:.0f} to {most:.1f} points behind in all columns" in PAGE
    both = [gaps[f"{one}:control=16"] for one in ("hogwild", "parameterserver")]
    for name in ("digits", "mnist"):
        assert max(gap.pop(name) for gap in both) <= 1
    said = " ".join(PAGE.split())
    on_teacher, with_three = (
        "{:.1f} and {:.1f}".format(*(gap[name] for gap in both))
        for name in ("teacher", "mnist, 3 of 6 lost")
    )
    assert f"on teacher ({on_teacher} points) and with 3 of 6 workers lost ({with_three})" in said
    for strategy, name, words in (
        ("localsgd", "teacher", "on digits and mnist, {:.1f} points behind on teacher"),
        ("localsgd", "mnist, 3 of 6 lost", "and {:.1f} with 3 of 6 workers lost. `diloco`"),
        ("diloco:h=16,momentum=0.5", "teacher", "but for teacher: {:.1f} points behind. With a"),
        ("adpsgd:control=16", "teacher", "So is `adpsgd`, but for teacher: {:.1f} points behind."),
        (QUORUM, "mnist", "With a quorum it is {:.1f} points behind on mnist"),
        (QUORUM, "teacher", "on mnist, too, and {:.1f} on teacher"),
    ):
        assert words.format(gaps[strategy].pop(name)) in said
    for strategy in ("localsgd", "diloco:h=16,momentum=0.5", "adpsgd:control=16"):
        assert max(gaps[strategy].values()) <= 1
    assert max(gaps["gossip:control=16"].values()) <= 1
