"""docs/cli.md says what the commands themselves say."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from spotmpi import cli
from spotmpi.exit_codes import MEANINGS
from tests.docs.pages import DOCS, ROOT

PAGE = (DOCS / "cli.md").read_text(encoding="utf-8")


def test_the_page_is_up_to_date() -> None:
    program = "import sys, write_cli; sys.stdout.write(write_cli.page())"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(DOCS), str(ROOT)])},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == PAGE, "run: python docs/write_cli.py"


def section(command: str) -> str:
    return PAGE.partition(f"\n## spotmpi {command}\n")[2].partition("\n## ")[0]


def test_it_has_each_command_and_each_option() -> None:
    # Not by the script that writes the page: what that overlooks would be missing twice.
    for name, _, parser in cli.parsers():
        shown = parser.format_help()
        if "..." in shown and name in ("bench", "simulate"):
            parts = re.findall(r"^    (\w+)\b", shown, re.MULTILINE)
            assert parts
            assert [part for part in parts if not section(f"{name} {part}")] == []
            continue
        options = re.findall(r"^  (?:-\w, )?(?:-\w \S+, )?(--[\w-]+)", shown, re.MULTILINE)
        assert {"--help"} <= {*options}
        missing = [o for o in options if o != "--help" and f"`{o}" not in section(name)]
        assert missing == [], name


def test_it_has_each_exit_code_of_a_job() -> None:
    told = dict(re.findall(r"^\| (\d+) \| (.+) \|$", section("run"), re.MULTILINE))
    assert told == {str(code): meaning for code, meaning in MEANINGS.items()}
    assert told.keys() == set("0 1 2 65 69 71 74 75 129 130 131 143".split())
