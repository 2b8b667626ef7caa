"""Files of users: what is read keeps its line, and whatever is wrong is said with it."""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from spotmpi.economy.reading import Field, load
from spotmpi.errors import UsageError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reading")


def of_yaml(folder: Path, text: str) -> Field:
    path = folder / "file.yaml"
    path.write_text(text, encoding="utf-8", newline="")
    return load(path)


def of_csv(folder: Path, text: str) -> Field:
    path = folder / "file.csv"
    path.write_text(text, encoding="utf-8", newline="")
    return load(path)


def plain(field: Field) -> Any:
    """The tree as ordinary objects; an empty text as None."""
    for unwrap in (
        lambda: {name: plain(value) for name, value in field.items()},
        lambda: [plain(value) for value in field.elements()],
        field.text,
    ):
        try:
            return unwrap()
        except UsageError:
            continue
    return None


@contextlib.contextmanager
def suppress_named(path: Path) -> Iterator[None]:
    """A UsageError that names the file is as good as a value; nothing else is."""
    try:
        yield
    except UsageError as error:
        if str(path) not in str(error):
            raise


# YAML.


def test_every_value_of_a_yaml_file_knows_its_line_and_what_leads_to_it(folder: Path) -> None:
    root = of_yaml(folder, "as_of: 2019-02-01\n\ntypes:\n  # a comment\n  K80:\n    spot: 0.256\n")
    spot = root.need("types").need("K80").need("spot")
    assert (spot.line, spot.name, spot.number()) == (6, "types.K80.spot", 0.256)
    assert root.need("as_of").text() == "2019-02-01"
    with pytest.raises(UsageError, match=r"file\.yaml, line 6: types\.K80\.spot is 0\.256 \$/h, "):
        spot.number("$/h", above=1)


TREES = st.recursive(
    st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1).filter(
        lambda text: text not in {"~", "null"}
    ),
    lambda below: st.lists(below) | st.dictionaries(st.text("abc~", min_size=1), below),
    max_leaves=20,
)


@given(st.lists(TREES) | st.dictionaries(st.text("abc", min_size=1), TREES))
def test_what_is_written_as_yaml_is_read_back(folder: Path, tree: Any) -> None:
    class NoAliases(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    text = yaml.dump(tree, Dumper=NoAliases, allow_unicode=True, sort_keys=False)
    assert plain(of_yaml(folder, text)) == tree


@given(st.binary(max_size=200))
@pytest.mark.parametrize("suffix", ["yaml", "csv"])
def test_any_bytes_are_read_or_refused_with_a_sentence(
    folder: Path, suffix: str, content: bytes
) -> None:
    path = folder / f"bytes.{suffix}"
    path.write_bytes(content)
    with suppress_named(path):
        plain(load(path))


@given(st.text("ab:-[]{}!&*|>%?#@`\"'\\Ux019,~ \n\t\x00\x1f\x85\u2028", max_size=60))
@example('a: "\\UFFFFFFFF"')
@example('a: "\\U00110000"')
@example("%YAML " + "1" * 5000 + ".1\n---\na: 1")
@example("[" * 50_000)
@example("- " * 3_000 + "a")
@pytest.mark.parametrize("suffix", ["yaml", "csv"])
def test_any_text_is_read_or_refused_with_a_sentence(folder: Path, suffix: str, text: str) -> None:
    path = folder / f"text.{suffix}"
    path.write_text(text, encoding="utf-8")
    with suppress_named(path):
        plain(load(path))


@pytest.mark.parametrize(
    ("text", "line", "complaint"),
    [
        ("a: 1\nb: {\n", 3, "not YAML"),
        ("a: 1\nb: 2\na: 3\n", 3, "a is there twice"),
        ("a: &x [1]\nb: *x\n", 1, "repeats another value by an alias"),
        ("a: 1\nb: *x\n", 2, "undefined alias"),
        ("a: 1\n? [b]\n: 1\n", 1, "a name must be a plain text"),
        ("a: 1\nb: \x07\n", 2, "not YAML"),
        ('a: 1\nb: "\\UFFFFFFFF"\n', 2, "not YAML"),
        ("a\n", 1, "expected names and values"),
        ("# nothing\n", 1, "expected names and values"),
        ("a: 1\n---\nb: 1\n", 2, "not YAML"),
    ],
)
def test_what_is_no_tree_of_values_is_refused_with_its_line(
    folder: Path, text: str, line: int, complaint: str
) -> None:
    with pytest.raises(UsageError, match=rf"file\.yaml, line {line}: .*{complaint}"):
        of_yaml(folder, text)


def test_nothing_in_a_yaml_file_becomes_an_object(folder: Path) -> None:
    root = of_yaml(folder, "a: !!python/object/apply:os.system [exit 1]\nb: !!int '3'\n")
    assert plain(root) == {"a": ["exit 1"], "b": "3"}


@given(st.integers(0, 30), st.integers(0, 30))
def test_a_mistake_planted_in_a_line_of_yaml_is_reported_with_that_line(
    folder: Path, before: int, after: int
) -> None:
    good = [f"good{i}: {i}" for i in range(before + after)]
    text = "\n".join([*good[:before], "bad: x1", *good[before:]])
    root = of_yaml(folder, text)
    with pytest.raises(UsageError, match=rf", line {before + 1}: bad is 'x1', expected a number"):
        [field.number() for _, field in root.items()]


# CSV.


CELLS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"])).map(str.strip)


@given(st.lists(st.tuples(CELLS, CELLS)))
@example([("a\u2028b", "c\x85d")])
@example([("two\nlines", 'a "quote", and a comma')])
def test_what_is_written_as_csv_is_read_back(folder: Path, rows: list[tuple[str, str]]) -> None:
    rows = [row for row in rows if any(row) and not row[0].startswith("#")]
    out = io.StringIO()
    csv.writer(out).writerows([("first", "second"), *rows])
    read = of_csv(folder, out.getvalue())
    nothing = {"", "~", "null"}
    assert plain(read) == [
        {"first": None if a in nothing else a, "second": None if b in nothing else b}
        for a, b in rows
    ]


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_each_row_of_a_csv_knows_its_line_whatever_ends_a_line(folder: Path, ending: str) -> None:
    text = ending.join(["# prices", "name,spot", "", "a\u2028b,1", "# more", "c,2", ""])
    rows = of_csv(folder, text).elements()
    assert [(row.line, row.need("spot").line) for row in rows] == [(4, 4), (6, 6)]


@pytest.mark.parametrize(
    ("text", "line", "complaint"),
    [
        ("a,b\n1,2\n1,2,3\n", 3, "3 values, expected 2: a, b"),
        ("# c\na,a\n", 2, "each name once"),
        ("a,\n", 1, "must name each column"),
        ('a,b\n1,"2\n', 2, "not CSV"),
        ('a,b\n1,"2"3\n', 2, "not CSV"),
    ],
)
def test_what_is_no_table_is_refused_with_its_line(
    folder: Path, text: str, line: int, complaint: str
) -> None:
    with pytest.raises(UsageError, match=rf"file\.csv, line {line}: .*{complaint}"):
        of_csv(folder, text)


def test_an_empty_table_has_no_rows(folder: Path) -> None:
    assert of_csv(folder, "").elements() == []
    assert of_csv(folder, "a,b\n").elements() == []


# Files.


def test_a_file_that_cannot_be_read_is_said_so(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.yaml cannot be read: No such file"):
        load(folder / "none.yaml")
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        load(folder)
    for name in ("zero\0byte", "half\ud800"):  # an escape in YAML can write either
        with pytest.raises(UsageError, match="cannot be the name of a file"):
            load(Path(name))
    path = folder / "latin.csv"
    path.write_bytes(b"a\nM\xfcnchen\n")
    with pytest.raises(UsageError, match="not text in UTF-8"):
        load(path)


def test_a_file_that_is_too_large_is_not_read(folder: Path) -> None:
    path = folder / "large.yaml"
    with path.open("wb") as file:
        file.truncate((16 << 20) + 1)
    with pytest.raises(UsageError, match="more than 16 MB"):
        load(path)


def test_a_byte_order_mark_is_no_part_of_the_first_name(folder: Path) -> None:
    path = folder / "mark.csv"
    path.write_bytes(b"\xef\xbb\xbfname\nK80\n")
    assert plain(load(path)) == [{"name": "K80"}]


# Fields.


def test_a_value_that_is_missing_or_null_is_not_there(folder: Path) -> None:
    root = of_yaml(folder, "top:\n  a: null\n  b: ~\n  c:\n  d: 0\n")
    top = root.need("top")
    assert [top.get(name) for name in "abcx"] == [None] * 4
    assert top.need("d").whole() == 0
    with pytest.raises(UsageError, match="line 1: there is no a of top, which is needed"):
        top.need("a")
    with pytest.raises(UsageError, match="line 1: there is no x, which is needed"):
        root.need("x")


def test_an_unknown_name_is_reported_with_a_near_one(folder: Path) -> None:
    root = of_yaml(folder, "spot: 1\non_demnd: 2\n")
    with pytest.raises(UsageError, match=r"line 2: on_demnd is not known.*did you mean on_demand"):
        root.only("spot", "on_demand")
    with pytest.raises(UsageError, match=r"line 2: on_demnd is not known here; known are spot$"):
        root.only("spot")


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda f: f.number("MB", least=5), "v is 4 MB, expected at least 5"),
        (lambda f: f.number(most=3), "v is 4, expected at most 3"),
        (lambda f: f.number(above=4), "v is 4, expected more than 4"),
        (lambda f: f.seconds(), "v is '4', expected a number with its unit"),
        (lambda f: f.text("second", "hour"), "v is '4', expected second or hour"),
        (lambda f: f.elements(), "v is '4', expected a list"),
        (lambda f: list(f.items()), "v is '4', expected a mapping"),
    ],
)
def test_a_value_that_is_not_what_is_wanted_is_shown(
    folder: Path, call: Any, complaint: str
) -> None:
    with pytest.raises(UsageError, match=f"line 2: {complaint}"):
        call(of_yaml(folder, "a: 1\nv: 4\n").need("v"))


def test_numbers_are_finite_and_whole_ones_whole(folder: Path) -> None:
    root = of_yaml(folder, "a: 1.5\nb: nan\nc: inf\nd: [1]\ne: 2h\nf: 0s\ng: 1e2\n")
    with pytest.raises(UsageError, match=r"line 1: a is 1\.5, expected a whole number"):
        root.need("a").whole()
    for name in "bcd":
        with pytest.raises(UsageError, match=f": {name} is .*, expected a number of MB/s"):
            root.need(name).number("MB/s")
    assert root.need("e").seconds() == 7200
    assert root.need("g").whole() == 100
    with pytest.raises(UsageError, match="line 6: f is 0 s, expected more than 0"):
        root.need("f").seconds(above=0)
