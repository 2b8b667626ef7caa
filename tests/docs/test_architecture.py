"""The code that the pages name is there, under the names that they give."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, PAGES, ROOT, name

ARCHITECTURE = (DOCS / "architecture.md").read_text(encoding="utf-8")
SOURCES = [
    path
    for folder in ("spotmpi", "bench", "kernels", "jobs")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
PRESENT = [page for page in PAGES if page.name != "CHANGELOG.md" and page.parent.name != "adr"]
"""Pages about what is; a decision or a change speaks of its day."""


def members() -> dict[str, set[str]]:
    """All classes by their names, with what is defined in them and in those that they extend."""
    found: dict[str, set[str]] = {}
    bases: dict[str, set[str]] = {}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                own = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
                fields = {ast.unparse(n.target) for n in node.body if isinstance(n, ast.AnnAssign)}
                found[node.name] = found.get(node.name, set()) | own | fields
                extended = {ast.unparse(base).partition("[")[0] for base in node.bases}
                bases[node.name] = bases.get(node.name, set()) | extended
    for cls, extended in bases.items():
        found[cls] |= {member for base in extended for member in found.get(base, ())}
    return found


def named(text: str) -> set[tuple[str, str]]:
    """The `Class.function` pairs that a page names."""
    return set(re.findall(r"`([A-Z]\w+)\.(\w+)(?:\([^`]*\))?`", text))


def lost(text: str) -> list[str]:
    """Those of them that are not there."""
    known = members()
    return sorted(
        f"{cls}.{member}" for cls, member in named(text) if member not in known.get(cls, ())
    )


def test_the_functions_that_the_walks_name_exist() -> None:
    assert len(named(ARCHITECTURE)) > 20
    assert lost(ARCHITECTURE) == []


def test_a_function_that_is_gone_is_found() -> None:
    assert lost("`Ledger.commit` `Ledger.gone` `Nobody.commit()`") == [
        "Ledger.gone",
        "Nobody.commit",
    ]


@pytest.mark.parametrize("page", PRESENT, ids=name)
def test_the_modules_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8").replace("\\", "")
    paths = re.findall(r"\b(?:spotmpi|bench|kernels|jobs|tests|docs)/[\w/]+\.py\b", text)
    assert [path for path in paths if not (ROOT / path).is_file()] == []


def test_the_walks_name_modules_by_their_paths() -> None:
    files = re.findall(r"(?<![\w/])[\w/]+\.py\b", ARCHITECTURE.replace("\\", ""))
    assert len(set(files)) > 10
    assert [f for f in files if not any((ROOT / p / f).is_file() for p in (".", "spotmpi"))] == []
