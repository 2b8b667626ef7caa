"""`spotmpi report`: one page that needs nothing else, whatever the trace holds."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from spotmpi import cli
from spotmpi.afterwards.charts import Axis, bars, line
from spotmpi.afterwards.page import page
from spotmpi.errors import TraceError
from spotmpi.trace.records import Record
from tests.trace.traced import changed, step, trace

_VOID = {"meta", "br", "hr", "input", "link", "img"}


class Page(HTMLParser):
    """What is in a page; fails if tags do not match."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_who_left_is_marked_also_where_it_was_an_interruption() -> None:
    """In a job on four hosts only those who were lost or came were."""
    asked = {"event": "cause", "at": 100.3, "worker": 0, "cause": "asked", "why": "spotmpi shrink"}
    left = changed(trace(), "change", 0, joined=[], left=[0], pause_ms=140.0)
    slow = changed([*left, asked], "step", 20, seconds=0.15)
    found = Page(page(slow, "run.jsonl"))
    assert "\N{MINUS SIGN}0" in found.text
    assert "lost, left, joined1, 1, 0" in found.text
    straggling = changed(trace(), "step", 15, seconds=0.15)
    assert "\N{MINUS SIGN}0" not in Page(page(straggling, "run.jsonl")).text


def test_all_is_on_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in trace()))
    assert cli.main(["report", str(path), "--price", "36"]) == 0
    assert capsys.readouterr().out == f"written: {tmp_path}/run.html\n"
    found = Page((tmp_path / "run.html").read_text())
    assert found.tags.count("svg") == 3
    for said in (
        "run.jsonl",
        "SSGD()",
        "9 parameters",
        "finished",
        "goodput88.6%",
        "lost, left, joined1, 0, 1",
        "cost0.00 USD (9.44e-05 host hours)",
        "Loss",
        "Workers",
        "Time of a step, ms",
        "worker 1 (killed)",
        "6.05.04.025.040.0",
        "SIGKILL; retry",
        "pause 1.5 ms",
        "holdssamples",
    ):
        assert said in found.text, said


def test_it_needs_nothing_else_and_runs_nothing() -> None:
    text = page(trace(), "run.jsonl")
    found = Page(text)
    assert not {"script", "link", "img", "iframe", "object", "form", "a"} & set(found.tags)
    named = {name for name, _ in found.attributes}
    assert not any(name.startswith("on") or name in ("src", "href") for name in named)
    assert "url(" not in text
    assert "@import" not in text
    assert re.findall(r"https?://", text) == []
    assert "default-src 'none'" in dict(found.attributes)["content"] or "default-src" in text


_EVIL = '"><script>alert(1)</script><img src=x onerror=alert(2)>'


def test_what_a_trace_holds_is_text_and_nothing_else() -> None:
    """In every place that takes a text."""
    records = changed(trace(), "start", 0, strategy=_EVIL, optimizer=_EVIL, hosts=[_EVIL] * 3)
    records = changed(records, "cause", 0, cause=_EVIL, why=_EVIL)
    records = changed(records, "recovery", 0, verdict=_EVIL)
    records = changed(records, "end", 0, outcome=_EVIL)
    records = changed(records, "recovered", 0, digest=_EVIL)
    told = {"step": 12, "generation": 1, "strategy": _EVIL, "strategy_name": _EVIL}
    slow = step(30, [0, 2, 3], 109.0, 8.0, generation=2)
    records = [*records[:-1], slow, {"event": "strategy", **told, "step": 30}, *records[-1:]]
    text = page(records, f"{_EVIL}.jsonl")
    found = Page(text)
    assert not {"script", "img"} & set(found.tags)
    assert not any(name.startswith("on") for name, _ in found.attributes)
    assert found.text.count("<script>alert(1)</script>") >= 5


@pytest.mark.parametrize(
    "records",
    [
        pytest.param([step(0, [0], 100.0, 0.01)], id="one step"),
        pytest.param([step(n, [0], 100.0, 0.0) for n in range(3)], id="no time at all"),
        pytest.param([step(n, [0], 100 + n, 1.0, loss=None) for n in range(3)], id="no loss"),
        pytest.param([step(n, [0], 100 + n, 1.0, loss=-n) for n in range(9)], id="negative"),
        pytest.param([step(n, [0], 100 + n, 1.0, loss=7) for n in range(9)], id="constant"),
        pytest.param([step(n, [0], 100 + n, 1e-9, loss=1e-300) for n in range(9)], id="tiny"),
        pytest.param(
            [step(n, [0], 1e14 * n, 1e14, loss=10.0 ** (n - 4)) for n in range(9)], id="huge"
        ),
        pytest.param(
            [
                {"event": "resume", "at": 1.0, "step": 5},
                *(step(n, [0], 100 + n, 1.0) for n in (5, 6)),
            ],
            id="resumed",
        ),
    ],
)
def test_whatever_a_trace_holds_there_is_a_page(records: list[Record]) -> None:
    found = Page(page(records, "x"))
    assert not any("nan" in value or "inf" in value for _, value in found.attributes)


def test_a_trace_without_steps_has_no_page() -> None:
    with pytest.raises(TraceError, match="holds no step"):
        page(trace()[:1], "x")


def test_a_long_training_has_a_page_of_a_bearable_size() -> None:
    records = [step(n, [0, 1], 100 + 0.01 * n, 0.01 + 0.03 * (n % 7 == 0)) for n in range(20_000)]
    assert len(page(records, "x")) < 400_000


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--price", "-1"], "--price -1: give a number, 0 or more"),
        (["--price", "nan"], "--price nan"),
        (["--price", "cheap"], "--price cheap: give a number, 0 or more"),
        (["--output", "x.jsonl"], "give a name that ends in .html"),
        (["--output", "no/x.html"], "cannot be written"),
    ],
)
def test_what_is_wrong_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in trace()))
    assert cli.main(["report", str(path), *words]) == 2
    assert sentence in capsys.readouterr().err


def test_an_axis_has_few_round_numbers() -> None:
    assert Axis(0.0, 4.2).ticks(whole=True) == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert Axis(0.0, 1.0).ticks() == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert Axis(1.0, 1000.0, log=True).ticks() == [1.0, 5.0, 20.0, 100.0, 500.0]
    for high in (0.003, 0.7, 1.1, 9.9, 61.0, 12345.0):
        assert 2 <= len(Axis(0.0, high).ticks()) <= 11


def test_a_line_keeps_what_stands_out() -> None:
    points = [(float(n), 5.0 if n == 777 else 1.0) for n in range(5000)]
    drawn = line(Axis(0.0, 5000.0), Axis(0.0, 5.0), points, "loss")
    assert " 0.0L" in drawn
    assert drawn.count("L") < 700


def test_parts_of_a_bar_are_shares_of_the_longest() -> None:
    assert bars([("a", 1.0), ("b", 3.0), ("c", 0.0)], 8.0) == (
        '<span class="bar"><i class="a" style="width:12.50%"></i>'
        '<i class="b" style="width:37.50%"></i></span>'
    )
