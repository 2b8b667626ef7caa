"""The pages build as a site, by the one command, without a network and without a warning."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.docs.pages import DOCS, ROOT

COMMAND = "python -m sphinx -W docs site"
"""As CONVENTIONS.md and docs/conf.py say it."""

NO_NETWORK = {f"{kind}_proxy": "http://127.0.0.1:9" for kind in ("http", "https", "all")}
"""Whoever asks for something gets no answer."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    _, *arguments = COMMAND.replace(" site", f" {out} -q -d {out}/.doctrees").split()
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, **NO_NETWORK, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return out


class Targets(HTMLParser):
    """What a page leads to, what it loads, and the anchors in it."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value for key, value in attrs if value is not None}
        if "id" in given:
            self.anchors.add(given["id"])
        if "src" in given:
            self.loaded.append(given["src"])
        if "href" in given:
            (self.links if tag == "a" else self.loaded).append(given["href"])


def pages(site: Path) -> Iterator[tuple[Path, Targets]]:
    for page in sorted(site.rglob("*.html")):
        yield page, Targets(page)


def test_the_command_stands_on_the_pages() -> None:
    for place in (ROOT / "CONVENTIONS.md", DOCS / "conf.py", ROOT / "pyproject.toml"):
        assert COMMAND in place.read_text(encoding="utf-8"), place


def test_each_page_is_in_the_site(site: Path) -> None:
    built = {page.relative_to(site).with_suffix(".md") for page in site.rglob("*.html")}
    assert {page.relative_to(DOCS) for page in DOCS.rglob("*.md")} <= built


def test_each_link_of_the_site_leads_somewhere(site: Path) -> None:
    anchors = {page: targets.anchors for page, targets in pages(site)}
    lost = []
    for page, targets in pages(site):
        for link in targets.links:
            if re.match("https?:", link):
                continue
            file, _, anchor = unquote(link).partition("#")
            found = (page.parent / file).resolve() if file else page
            if not found.is_file() or (anchor and anchor not in anchors.get(found, ())):
                lost.append(f"{page.relative_to(site)}: {link}")
    assert lost == []


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    for page, targets in pages(site):
        assert targets.loaded
        assert [one for one in targets.loaded if "//" in one] == [], page
    for sheet in site.rglob("*.css"):
        assert re.findall(r"(?:@import|url\()[^;]*//", sheet.read_text(encoding="utf-8")) == []
