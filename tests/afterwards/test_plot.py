"""`spotmpi plot`: the demo's picture, of any training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spotmpi import cli
from spotmpi.afterwards import plot
from tests.trace.traced import trace


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in trace()))
    return path


def test_it_is_drawn_beside_the_trace(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plot", str(file)]) == 0
    assert file.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    said = capsys.readouterr().out
    assert "recovery 1: worker 1 lost; 2 survivors go on 40.0 ms after the death" in said
    assert said.endswith(f"drawn: {file.with_suffix('.png')}\n")


def test_the_name_says_in_which_format(file: Path, tmp_path: Path) -> None:
    assert cli.main(["plot", str(file), "--output", str(tmp_path / "x.svg")]) == 0
    assert "<svg" in (tmp_path / "x.svg").read_text()


@pytest.mark.parametrize(
    ("output", "sentence"),
    [("x.jsonl", "give a name that ends in .png, .svg, .pdf"), ("no/x.png", "there is no folder")],
)
def test_where_it_cannot_be_drawn_is_said(
    file: Path, capsys: pytest.CaptureFixture[str], output: str, sentence: str
) -> None:
    before = file.read_bytes()
    assert cli.main(["plot", str(file), "--output", str(file.parent / output)]) == 2
    assert sentence in capsys.readouterr().err
    assert file.read_bytes() == before


def test_without_matplotlib_it_says_what_to_install(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plot, "find_spec", lambda name: None)
    assert cli.main(["plot", str(file)]) == 1
    assert "python -m pip install matplotlib" in capsys.readouterr().err
