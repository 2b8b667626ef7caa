"""The project's pages as text: what the tests of pages have in common."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])

_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"\]\(([^()\s]+)\)")


def name(page: Path) -> str:
    """The page as a person names it: its path in the project."""
    return str(page.relative_to(ROOT))


def prose(text: str) -> str:
    """The text without what is shown as code."""
    return _CODE.sub("", _FENCE.sub("", text))


def links(text: str) -> list[str]:
    """What the links and images of a page lead to within the project, as it stands there."""
    return [target for target in _LINK.findall(prose(text)) if not re.match("https?:", target)]


def blocks(text: str, language: str) -> list[str]:
    """The code blocks of a page in one language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def table(text: str, title: str, number: int = 0) -> list[list[str]]:
    """The cells of a table of a section, its head left out."""
    section = text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    lines = re.findall(r"(?:^\|.*\|\n)+", section, re.MULTILINE)[number].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", _FENCE.sub("", text), re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        number, anchor = 0, slug
        while anchor in found:
            number += 1
            anchor = f"{slug}-{number}"
        found.add(anchor)
    return found
