"""How the pages become a site: ``python -m sphinx -W docs site``. Nothing is fetched.

The pages are plain Markdown, which is read as it lies in the project as well. What only the site
needs is made here: the menu, from the lists of index.md, and what becomes of links that lead out
of ``docs``.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

_DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(_DOCS.parent))

import spotmpi  # noqa: E402 (of this checkout)

project = "spotmpi"
author = "spotmpi authors"
copyright = "spotmpi authors, Apache-2.0"  # noqa: A001 (Sphinx's name for it)
version = release = spotmpi.__version__

extensions = ["myst_parser"]
root_doc = "index"
myst_heading_anchors = 3
smartquotes = False  # two hyphens before an option must stay two hyphens

html_theme = "alabaster"  # Sphinx's own: no script, font or picture from elsewhere
html_title = "spotmpi"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_sidebars = {"**": ["about.html", "searchbox.html", "navigation.html"]}
html_theme_options = {
    "description": "Training on machines that may vanish at any moment",
    "fixed_sidebar": True,
    "font_family": "system-ui, sans-serif",
    "font_size": "16px",
    "head_font_family": "system-ui, sans-serif",
    "page_width": "1120px",
    "sidebar_width": "250px",
}


def _menu(text: str) -> str:
    """The pages that an index lists, under its captions, as Sphinx's (hidden) table of contents."""
    lines = []
    for part in re.split(r"^(?=\*\*)", text, flags=re.MULTILINE):
        pages = re.findall(r"\]\((?!\.\.)([\w/-]+)\.md\)", part)
        caption = re.match(r"\*\*(.+)\*\*$", part, re.MULTILINE)
        if pages and (caption or "**" not in text):
            lines += ["", "```{toctree}", ":hidden:"]
            lines += [f":caption: {caption[1]}"] if caption else []
            lines += ["", *dict.fromkeys(pages), "```"]
    return "\n".join(lines)


def _inside(text: str, page: Path) -> str:
    """The page, with the names of files instead of links to pages and folders outside of docs."""

    def named(link: re.Match[str]) -> str:
        target = (page.parent / link[2]).resolve()
        outside = not target.is_relative_to(_DOCS)
        if outside and (target.is_dir() or target.suffix == ".md"):
            return f"`{target.relative_to(_DOCS.parent)}`"
        return link[0]

    return re.sub(r"\[([^\]]+)\]\((\.\./[^)#]+)\)", named, text)


def _read(app: Sphinx, name: str, content: list[str]) -> None:
    page = _DOCS / f"{name}.md"
    menu = _menu(content[0]) if page.stem == "index" else ""
    content[0] = _inside(content[0], page) + menu


def setup(app: Sphinx) -> None:
    """Sphinx calls it."""
    app.connect("source-read", _read)
