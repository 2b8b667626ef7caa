"""Style held by test: what CONVENTIONS.md says and no linter knows."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = ("spotmpi", "kernels", "bench", "jobs")
FOLDERS = (*LIBRARY, "tests", "docs", ".ci")
CORE = [f"spotmpi/{room}" for room in ("fabric", "operators", "rounds", "strategies", "training")]
MAX_LINES, MAX_LINES_OF_THE_CORE = 600, 400
MAX_FIELDS, MAX_METHODS = 15, 25
"""Of a class of the core."""


def files(*folders: str, suffixes: tuple[str, ...] = (".py",)) -> Iterator[Path]:
    """The project's files under ``folders``, each once (not through the symlinks again)."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            linked = any((ROOT / p).is_symlink() for p in path.relative_to(ROOT).parents)
            wanted = path.suffix in suffixes and "__pycache__" not in path.parts
            if wanted and not linked and path.is_file():
                yield path


def everything() -> Iterator[Path]:
    """All text of the project: modules, scripts, pages and configuration."""
    scripts = (".sbatch", ".sh")
    yield from files(
        *FOLDERS, suffixes=("", ".py", *scripts, ".md", ".txt", ".jsonl", ".toml", ".yaml")
    )
    for pattern in ("*.md", "*.toml", "*.cfg", "*.in", ".gitignore"):
        yield from sorted(ROOT.glob(pattern))


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@functools.cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def grep(pattern: str, paths: Iterator[Path]) -> list[str]:
    """``file:line: text`` of each line that matches."""
    return [
        f"{name(path)}:{number}: {line.strip()}"
        for path in paths
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(pattern, line)
    ]


def test_the_rules_see_the_project() -> None:
    seen = {name(path) for path in files(*FOLDERS)}
    assert {"spotmpi/errors.py", "bench/__init__.py", "tests/test_style.py"} <= seen
    assert not any(path.startswith("spotmpi/bench/") for path in seen), "through a symlink"
    assert {"pyproject.toml", "setup.cfg", ".ci/run"} <= {name(path) for path in everything()}


def test_a_file_holds_one_idea() -> None:
    lengths = {name(p): len(p.read_text(encoding="utf-8").splitlines()) for p in files(*FOLDERS)}
    assert {file: lines for file, lines in lengths.items() if lines > MAX_LINES} == {}
    core = {name(path) for path in files(*CORE)}
    assert [file for file in core if lengths[file] > MAX_LINES_OF_THE_CORE] == []


def test_a_class_of_the_core_can_be_held_in_the_head() -> None:
    found = {
        f"{name(path)}: {one.name}": (len(fields(one)), len(methods(one)))
        for path in files(*CORE)
        for one in ast.walk(parse(path))
        if isinstance(one, ast.ClassDef)
    }
    assert len(found) > 200
    assert {
        one: counts
        for one, counts in found.items()
        if counts[0] > MAX_FIELDS or counts[1] > MAX_METHODS
    } == {}


def fields(one: ast.ClassDef) -> set[str]:
    """What an object of this class holds: what is declared, and what a method sets."""
    declared = {
        line.target.id
        for line in one.body
        if isinstance(line, ast.AnnAssign)
        and isinstance(line.target, ast.Name)
        and "ClassVar" not in ast.unparse(line.annotation)
    }
    return declared | {
        place.attr
        for place in ast.walk(one)
        if isinstance(place, ast.Attribute)
        and isinstance(place.ctx, ast.Store)
        and isinstance(place.value, ast.Name)
        and place.value.id == "self"
    }


def methods(one: ast.ClassDef) -> list[ast.FunctionDef]:
    return [line for line in one.body if isinstance(line, ast.FunctionDef)]


def test_a_module_is_named_after_what_it_does() -> None:
    vague = {"common", "helper", "helpers", "misc", "tools", "util", "utils"}
    assert [name(path) for path in files(*FOLDERS) if vague & {path.stem, *path.parts}] == []


def undocumented(path: Path) -> Iterator[str]:
    """The public module, classes and functions of ``path`` that say nothing."""
    module = parse(path)
    if ast.get_docstring(module) is None:
        yield name(path)
    for node in module.body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if not node.name.startswith("_") and ast.get_docstring(node) is None:
            yield f"{name(path)}:{node.lineno}: {node.name}"


def test_whatever_is_public_says_its_contract() -> None:
    assert [finding for path in files(*LIBRARY) for finding in undocumented(path)] == []


def test_nothing_read_can_execute_code() -> None:
    forbidden = {"cloudpickle", "dill", "marshal", "pickle", "shelve"}
    found = []
    for path in files(*LIBRARY):
        for node in ast.walk(parse(path)):
            names: set[str] = set()
            if isinstance(node, ast.Import):
                names = {alias.name.split(".")[0] for alias in node.names} & forbidden
            elif isinstance(node, ast.ImportFrom):
                names = {(node.module or "").split(".")[0]} & forbidden
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                names = {node.func.id} & {"eval", "exec"}
            elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                names = {"allow_pickle"}
            found += [f"{name(path)}:{getattr(node, 'lineno', 0)}: {n}" for n in sorted(names)]
    assert found == []


def test_mpi_carries_buffers_and_no_pickles() -> None:
    # mpi4py pickles whatever goes through a communicator's lower-case methods.
    lower_case = r"omm\w*\.(i?send|i?recv|sendrecv|i?bcast|gather|scatter|(all)?reduce|all\w+)\b"
    assert grep(lower_case, files("spotmpi", "bench", "jobs")) == []


def test_no_test_sleeps_to_wait_for_something() -> None:
    sleeping = r"\b(time|asyncio)\.sleep\(|from time import .*\bsleep\b"
    assert grep(sleeping, files("tests")) == []


def test_an_epoch_is_a_word_of_training_and_a_generation_one_of_membership() -> None:
    # (torch calls a pass so: its samplers have an attribute of that name.)
    assert grep(r"(?i)(?<!self\.)epoch", files("spotmpi", "kernels")) == []


PLAIN = "arrays fabric operators optimizers policies protocol rounds strategies training".split()
"""Rooms whose prose is plain; launch, economy, trace and simulation are still to come."""
UNUSUAL = r"has it so|\bso many\b|in vain|that of\b|[Ww]hoever|of the day|[Ww]hatever|\banew\b"


def test_prose_has_the_usual_words() -> None:
    assert grep(UNUSUAL, files("kernels", *(f"spotmpi/{room}" for room in PLAIN))) == []


def test_unusual_words_are_found() -> None:
    assert re.findall(UNUSUAL, "Whoever has so many of them, a worker has this many") == [
        "Whoever",
        "so many",
    ]


def test_no_file_knows_the_machine_it_was_written_on() -> None:
    pattern = r"(^|[\s'\"`=(:])/(work|tmp/venv|tmp/notes|root)" + r"/|\bshared/[A-Z]+\.md"
    assert grep(pattern, everything()) == []


def test_modules_import_each_other_by_their_installed_names() -> None:
    assert grep(r"^\s*(from|import) (kernels|bench|jobs)\b", files(*FOLDERS)) == []


def test_no_folder_of_the_package_has_more_than_twenty_modules() -> None:
    """Nor are more than fourteen loose in the package itself."""
    modules = [path for path in files(*LIBRARY) if not path.name.startswith("__")]
    held = Counter(path.parent for path in modules)
    assert [name(folder) for folder, count in held.items() if count > 20] == []
    assert held[ROOT / "spotmpi"] <= 14
