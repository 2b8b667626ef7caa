"""Write docs/cli.md from the commands themselves: ``python docs/write_cli.py``.

The page is what ``--help`` says, in one place. A test holds that it is up to date.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from spotmpi import cli

PAGE = Path(__file__).with_name("cli.md")

_HEAD = """\
# Commands

<!-- Written by docs/write_cli.py from the commands' own help: change that, not this page. -->

`python -m spotmpi` is the same as `spotmpi`. Each command has `--help`, which says the same as this
page, and `spotmpi --version` shows the version.

| command | what it does |
| --- | --- |
"""

_CODES = """
**Exit codes of all commands**: 0 it did what you asked; 1 it did not, and standard error says why;
2 wrong arguments, and one sentence says what is wrong; 130 Ctrl-C. A command with codes of its own
lists them below. Those of `spotmpi run` say [what became of the job](#spotmpi-run).
"""


def page() -> str:
    """The whole page."""
    commands = [one for command in cli.parsers() for one in _with_parts(*command)]
    rows = "".join(
        f"| [`spotmpi {name}`](#spotmpi-{name.replace(' ', '-')}) | {_cell(_escaped(summary))} |\n"
        for name, summary, _ in commands
    )
    described = "".join("\n" + _command(name, parser) for name, _, parser in commands)
    return (_HEAD + rows + _CODES + described).rstrip("\n") + "\n"


def _with_parts(
    name: str, summary: str, parser: argparse.ArgumentParser
) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """The command, or else the commands that it is made of."""
    parts = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not parts:
        yield name, summary, parser
    for part in parts:
        for action in part._choices_actions:
            yield from _with_parts(
                f"{name} {action.dest}", action.help or "", part.choices[action.dest]
            )


def _command(name: str, parser: argparse.ArgumentParser) -> str:
    lines = [f"## spotmpi {name}", "", *_said(parser.description or ""), ""]
    lines += ["```text", _usage(name, parser), "```", ""]
    actions = [a for a in parser._actions if not isinstance(a, argparse._HelpAction)]
    if actions:
        lines += ["| | |", "| --- | --- |"]
        lines += [f"| {_spelled(action)} | {_cell(_help(action))} |" for action in actions]
        lines.append("")
    for paragraph in (parser.epilog or "").split("\n\n"):
        lines += [*_paragraph(paragraph), ""] if paragraph else []
    return "\n".join(lines)


def _paragraph(text: str) -> list[str]:
    """One paragraph of the help's end: examples, exit codes, or plain sentences."""
    title, _, rest = text.partition(":")
    if title in ("example", "examples"):
        return ["```bash", *_example(rest.strip()), "```"]
    if title == "exit codes":
        codes = re.findall(r"^  (\d+) +(.+)$", rest, re.MULTILINE)
        return [
            "| exit code | meaning |",
            "| --- | --- |",
            *(f"| {c} | {_cell(t)} |" for c, t in codes),
        ]
    return list(_said(text))


def _example(text: str) -> Iterator[str]:
    """Its lines; what goes on in the next line is set in there."""
    inside = False
    for line in text.split("\n"):
        yield f"    {line.strip()}" if inside else line.strip()
        inside = line.endswith("\\")


def _said(text: str) -> Iterator[str]:
    """Sentences; lines that are set in stand in a list."""
    for line in text.splitlines():
        linked = re.sub(r"docs/(\w+\.md)", r"[\1](\1)", _escaped(line))
        yield re.sub(r"^  ", "- ", linked)


def _usage(name: str, parser: argparse.ArgumentParser) -> str:
    if parser.usage is not None:
        return str(parser.usage)
    words = [f"spotmpi {name}"]
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        text = _one_way(action)
        words.append(text if action.required or not action.option_strings else f"[{text}]")
    lines = [""]
    for word in words:
        if len(lines[-1]) + len(word) > 90:
            lines.append("       ")
        lines[-1] += f" {word}" if lines[-1] else word
    return "\n".join(lines)


def _one_way(action: argparse.Action) -> str:
    argument = _argument(action)
    return f"{action.option_strings[0]} {argument}".strip() if action.option_strings else argument


def _argument(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    name = str(
        action.metavar or (action.dest if action.choices is None else "|".join(action.choices))
    )
    if action.nargs == argparse.REMAINDER:
        return name if " " in name else f"{name} ..." if action.metavar else "SCRIPT [ARGS...]"
    return f"{name} [{name} ...]" if action.nargs == "+" else name


def _spelled(action: argparse.Action) -> str:
    if not action.option_strings:
        return f"`{_cell(_argument(action))}`"
    argument = _argument(action)
    return ", ".join(
        f"`{_cell(f'{option} {argument}'.strip())}`" for option in action.option_strings
    )


def _help(action: argparse.Action) -> str:
    return _escaped((action.help or "") % {"default": action.default})


def _escaped(text: str) -> str:
    """Nothing in it is markup but what stands between backquotes."""
    parts = text.split("`")
    return "`".join(
        re.sub(r"([*_<>\[\]])", r"\\\1", part) if number % 2 == 0 else part
        for number, part in enumerate(parts)
    )


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
