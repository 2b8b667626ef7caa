"""Each link between the project's pages leads to a file that is there, and to a heading in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import DOCS, PAGES, ROOT, anchors, links, name


def headings(page: Path) -> set[str]:
    return anchors(page.read_text(encoding="utf-8")) if page.suffix == ".md" else set()


def wrong(page: Path, text: str) -> list[str]:
    """The links of ``text``, as if it stood in ``page``, that lead nowhere."""
    lost = []
    for target in links(text):
        file, _, anchor = target.partition("#")
        found = (page.parent / file).resolve() if file else page
        there = found.is_relative_to(ROOT) and found.exists()
        if not there or (anchor and anchor not in headings(found)):
            lost.append(target)
    return lost


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    assert wrong(page, page.read_text(encoding="utf-8")) == []


def test_links_that_lead_nowhere_are_found() -> None:
    text = (
        "# Here\n[a](#here) [b](#there) ![c](nothing.png) [d](index.md)\n[over two\nlines](no.md)"
        " [e](index.md#no) [f](https://example.org/no) `[g](code.md)` [h](../../outside.md)\n"
        "```\n[i](code.md)\n# not a heading\n```\n[j](#not-a-heading)\n"
    )
    page = DOCS / "limits.md"
    assert wrong(page, text) == [
        *("#here", "#there", "nothing.png", "no.md", "index.md#no", "../../outside.md"),
        "#not-a-heading",
    ]


def test_repeated_headings_have_anchors_of_their_own() -> None:
    assert anchors("# A b\n## A b\n### `c`: d, e!\n") == {"a-b", "a-b-1", "c-d-e"}


def test_each_page_can_be_reached_from_the_index() -> None:
    seen: set[Path] = set()
    to_read = [DOCS / "index.md"]
    while to_read:
        page = to_read.pop()
        if page in seen:
            continue
        seen.add(page)
        for target in links(page.read_text(encoding="utf-8")):
            file = (page.parent / target.partition("#")[0]).resolve()
            if file.suffix == ".md" and file.is_relative_to(DOCS):
                to_read.append(file)
    assert sorted({*DOCS.rglob("*.md")} - seen) == []
