"""Scripts and modules: what they are called, and whether they are there, without running them."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotmpi.launch.start.program import Program


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """Packages of which none may be imported."""
    for name in (
        "project/__init__.py",
        "project/train.py",
        "project/below/__init__.py",
        "project/below/__main__.py",
        "project/below/deep.py",
        "lone.py",
        "plain/inside.py",
        "plain/deep/below.py",
        "elsewhere/__init__.py",
    ):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("raise SystemExit('this was imported')\n")
    (tmp_path / "elsewhere" / "__init__.py").write_text("__path__ = computed()\n")
    return str(tmp_path)


@pytest.mark.parametrize(
    ("words", "called", "short"),
    [
        (("below/train.py", "-m", "x"), "below/train.py", "train.py"),
        (("-m", "project.train", "--passes", "3"), "-m project.train", "-m project.train"),
        (("-m",), "-m", "-m"),
    ],
)
def test_it_is_what_python_would_be_given(words: tuple[str, ...], called: str, short: str) -> None:
    program = Program.of(words)
    assert program.task == words
    assert (program.called, program.short) == (called, short)


@pytest.mark.parametrize(
    "name",
    [
        "lone",
        "project.train",
        "project.below",
        "project.below.__main__",
        "project.below.deep",
        "plain.inside",
        "plain.deep.below",
        "json.tool",
        "spotmpi",
        "spotmpi.jobs.digits",
        "elsewhere.unknown",  # only its package knows
    ],
)
def test_a_module_is_found_as_python_finds_it(folder: str, name: str) -> None:
    assert Program(name, is_module=True).missing(folder) is None


@pytest.mark.parametrize(
    "name",
    [
        "none",
        "project",  # has no __main__
        "plain",
        "plain.deep",
        "project.none",
        "project.train.below",
        "lone.py",
        "project/train",
        "project..train",
        ".train",
        "",
    ],
)
def test_a_module_that_is_not_there_is_known_beforehand(folder: str, name: str) -> None:
    assert Program(name, is_module=True).missing(folder) == f"module {name}"


def test_modules_are_where_workers_will_look_for_them(folder: str, tmp_path: Path) -> None:
    far = Program("deep", is_module=True)
    assert far.missing(folder) == "module deep"
    assert far.missing(folder, ["project/below"]) is None
    assert far.missing(str(tmp_path / "nowhere"), [f"{folder}/project/below"]) is None


def test_its_text_tells_two_of_one_name_apart(folder: str, tmp_path: Path) -> None:
    program = Program("project.train", is_module=True)
    before = program.source(folder)
    assert before == (tmp_path / "project" / "train.py").read_bytes()
    assert Program("project/train.py").source(folder) == before
    (tmp_path / "project" / "train.py").write_text("pass\n")
    assert program.source(folder) == b"pass\n"
    assert Program("none", is_module=True).source(folder) == b""
    assert Program("none.py").source(folder) == b""
