"""Checkpoints: to the bit, through damage, deaths, full disks and files made to do harm."""

from __future__ import annotations

import hashlib
import os
import random
import stat
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from spotmpi.errors import CheckpointError, UsageError
from spotmpi.training.keeping import checkpoint_file
from spotmpi.training.keeping.checkpoint_file import check_arrays, load_file, load_latest, save
from spotmpi.training.keeping.checkpoint_folder import check_unused, newest, published
from spotmpi.training.keeping.entries import Value

NANS = np.array([0x7FC00001, 0xFFC12345, 0x7F800001, 0x80000000], dtype=np.uint32).view(np.float32)
STATE: dict[str, Value] = {
    "params/0": np.arange(12, dtype=np.float32).reshape(3, 4),
    "params/1": NANS,
    "momentum/velocity/0": np.array([0x7FF0DEADBEEF0001, 1 << 63], dtype=np.uint64).view(
        np.float64
    ),
    "sampler/0/pool": np.empty(0, dtype=np.int64),
    "sampler/0/cursor": 17,
    "empty": np.empty((3, 0, 2), dtype=np.float32),
    "0-d": np.array(2.5, dtype=np.float16),
    "transposed": np.arange(6, dtype=np.int16).reshape(2, 3).T,
    "big-endian": np.arange(5, dtype=">i4"),
    "flags": np.array([[True], [False]]),
    "huge": 2**127 + 1,
    "negative": -(2**90),
    "least": -(2**63),
    "rate": struct.unpack("<d", struct.pack("<Q", 0x7FF8_0000_0000_0BAD))[0],
    "tiny": 5e-324,
    "on": True,
    "strategy": "SSGD \N{GREEK SMALL LETTER ALPHA}\0 end",
    "nothing": "",
    "raw": b"\0\xff\0",
}


def nowhere(sentence: str) -> None:
    pytest.fail(f"a warning where none is due: {sentence}")


def bits(value: Value) -> tuple[object, ...]:
    """Type and every bit of a value."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    return type(value), struct.pack("<d", value) if isinstance(value, float) else value


def simple(step: int, size: int = 100) -> dict[str, Value]:
    """A state that tells its step wherever one looks."""
    return {"params/0": np.full(size, step, dtype=np.float64), "step": step, "text": str(step)}


def seal(path: Path, step: int) -> None:
    """The header, written anew from its description in the module."""
    body = path.read_bytes()[512:]
    text = f"spotmpi checkpoint 1\nstep {step:012}\nbytes {len(body) + 512:015}\n".encode()
    text += b"sha256 " + hashlib.sha256(text + body).hexdigest().encode() + b"\n"
    path.write_bytes(text.ljust(512, b"\0") + body)


def run_python(script: str, *args: object) -> str:
    """The output of a Python script that must succeed."""
    command = [sys.executable, "-c", script, *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


# ------------------------------------------------------------------------------ what comes back


def test_a_state_comes_back_to_the_bit(tmp_path: Path) -> None:
    path = save(tmp_path, 40, STATE, {"workers": [0, 1], "version": "1.0"})
    loaded = load_latest(tmp_path, nowhere)
    assert path == loaded.path == tmp_path / "checkpoint-000000000040.h5"
    assert loaded.step == 40
    assert loaded.about == {"workers": [0, 1], "version": "1.0"}
    assert {k: bits(v) for k, v in loaded.state.items()} == {k: bits(v) for k, v in STATE.items()}
    array = loaded.state["params/0"]
    assert isinstance(array, np.ndarray)
    assert array.flags.writeable
    assert array.flags.owndata


def test_a_numpy_scalar_comes_back_as_an_array_without_dimensions(tmp_path: Path) -> None:
    save(tmp_path, 0, {"a": np.float64(0.1), "b": np.int32(3), "c": np.longlong(4)})
    state = load_latest(tmp_path, nowhere).state
    assert {k: bits(v)[:2] for k, v in state.items()} == {
        "a": ("<f8", ()),
        "b": ("<i4", ()),
        "c": ("<i8", ()),
    }


def test_an_empty_state_is_a_state(tmp_path: Path) -> None:
    save(tmp_path, 0, {})
    assert load_latest(tmp_path, nowhere).state == {}


def test_many_arrays_come_back(tmp_path: Path) -> None:
    state = {f"params/layer{i}/weight": np.full(i % 7, i, dtype=np.float32) for i in range(2000)}
    save(tmp_path, 1, state)
    loaded = load_latest(tmp_path, nowhere).state
    assert {k: bits(v) for k, v in loaded.items()} == {k: bits(v) for k, v in state.items()}


def test_the_file_is_plain_hdf5_with_a_readable_header_and_private(tmp_path: Path) -> None:
    path = save(tmp_path, 40, STATE)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()
    with h5py.File(path, "r") as file:
        assert file["array/params/0"].shape == (3, 4)
        assert file["int/sampler/0/cursor"][()] == 17
        assert bytes(file["str/strategy"][...]).decode() == STATE["strategy"]
    seal(path, 40)
    assert path.read_bytes() == before


def test_the_same_state_makes_the_same_bytes(tmp_path: Path) -> None:
    first = save(tmp_path, 40, STATE).read_bytes()
    assert save(tmp_path, 40, STATE).read_bytes() == first


@pytest.mark.parametrize("locking", ["TRUE", "FALSE", "BEST_EFFORT"])
def test_a_site_may_set_hdf5_locking_as_it_likes(tmp_path: Path, locking: str) -> None:
    script = """
import os, sys
os.environ["HDF5_USE_FILE_LOCKING"] = sys.argv[2]
from pathlib import Path
from spotmpi.training.keeping.checkpoint_file import load_latest, save
save(Path(sys.argv[1]), 3, {"a": 1})
assert load_latest(Path(sys.argv[1]), print).state == {"a": 1}
"""
    run_python(script, tmp_path, locking)


# ---------------------------------------------------------------------------- what is not kept


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("model", object(), "'model' is a builtins.object"),
        ("model", [1.0], "'model' is a builtins.list"),
        ("a", np.array([None]), "an array of object"),
        ("a", np.array(["text"]), "an array of <U4"),
        ("a", np.zeros(1, dtype=np.complex64), "an array of complex64"),
        ("a", np.zeros(1, dtype=[("x", "f4")]), "an array of"),
        ("a", np.zeros(1, dtype="M8[s]"), "an array of datetime64"),
        ("a", np.zeros((1,) * 33, dtype=np.int8), "33 dimensions"),
        ("a", "\ud800", "not valid Unicode"),
        ("", 1, "cannot name"),
        ("/a", 1, "cannot name"),
        ("a//b", 1, "cannot name"),
        ("a/../b", 1, "cannot name"),
        ("a\0", 1, "cannot name"),
        ("\ud800", 1, "cannot name"),
        ("/".join("a" * 40), 1, "cannot name"),
        ("params/0/x", 1, "both 'params/0' and 'params/0/x'"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(
    tmp_path: Path, name: str, value: Any, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        save(tmp_path, 1, {"params/0": 1, name: value})
    assert list(tmp_path.iterdir()) == []


def test_arrays_that_cannot_be_kept_are_refused_before_there_are_any() -> None:
    fits = ("float32", (1000, 1000, 1000, 1000))
    check_arrays({"params/0": fits, "params/1": ("float64", ())})
    with pytest.raises(UsageError, match="both 'params/0' and 'params/0/x'"):
        check_arrays({"params/0": fits, "params/0/x": fits})
    with pytest.raises(UsageError, match="an array of float32 with 33 dimensions"):
        check_arrays({"params/0": ("float32", (1,) * 33)})


@pytest.mark.parametrize("step", [-1, 10**12])
def test_a_step_that_has_no_file_name_is_refused(tmp_path: Path, step: int) -> None:
    with pytest.raises(UsageError, match=str(step)):
        save(tmp_path, step, {})


@pytest.mark.parametrize("about", [{"a": object()}, {"a": float("nan")}])
def test_an_about_that_is_not_json_is_refused(tmp_path: Path, about: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="JSON"):
        save(tmp_path, 1, {}, about)


# ------------------------------------------------------------------------------- which one is used


def test_the_last_two_stay(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for step in (1, 2, 10, 9):
        save(tmp_path, step, simple(step))
    # 9 comes after 10 only where somebody went back: nothing later than it is removed for it.
    assert [path.name for path in published(tmp_path)] == [
        "checkpoint-000000000010.h5",
        "checkpoint-000000000009.h5",
        "checkpoint-000000000002.h5",
    ]
    assert (tmp_path / "notes.txt").exists()


def test_one_that_is_not_finite_removes_none_that_is(tmp_path: Path) -> None:
    """And the last of such stays, until a finite one has come as far."""

    def kept() -> list[str]:
        return [path.name.removeprefix("checkpoint-000000000") for path in published(tmp_path)]

    for step in (1, 2, 3):
        save(tmp_path, step, simple(step))
    for step in (4, 5, 6):
        save(tmp_path, step, simple(step), None, False)
    assert kept() == ["006.not-finite.h5", "003.h5", "002.h5"]
    assert newest(tmp_path) == tmp_path / "checkpoint-000000000003.h5"
    said: list[str] = []
    assert load_latest(tmp_path, said.append).step == 3
    assert "000006.not-finite.h5 is not usable (its parameters are not finite)" in said[0]
    assert "checkpoint-000000000003.h5 is used" in said[0]
    save(tmp_path, 5, simple(5))
    assert kept() == ["006.not-finite.h5", "005.h5", "003.h5"]
    save(tmp_path, 6, simple(6))
    assert kept() == ["006.h5", "005.h5"]


def test_if_all_are_not_finite_none_is_used(tmp_path: Path) -> None:
    path = save(tmp_path, 7, simple(7), None, False)
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* is usable: .*are not finite"):
        load_latest(tmp_path, nowhere)
    with pytest.raises(UsageError, match="the last of step 7"):
        check_unused(tmp_path)
    assert newest(tmp_path) is None
    assert load_file(path).step == 7
    path.rename(tmp_path / "checkpoint-000000000007.h5")  # whoever wants it all the same
    assert load_latest(tmp_path, nowhere).step == 7


def test_a_new_run_does_not_mix_its_checkpoints_with_those_of_an_earlier_one(
    tmp_path: Path,
) -> None:
    check_unused(tmp_path)
    check_unused(tmp_path / "missing")
    for step in (7, 8):
        save(tmp_path, step, simple(step))
    with pytest.raises(UsageError, match="an earlier run, the last of step 8: go on from there"):
        check_unused(tmp_path)


def test_a_damaged_one_is_named_and_the_one_before_it_used(tmp_path: Path) -> None:
    save(tmp_path, 1, simple(1))
    path = save(tmp_path, 2, simple(2))
    os.truncate(path, 1000)
    said: list[str] = []
    loaded = load_latest(tmp_path, said.append)
    assert loaded.step == 1
    assert {k: bits(v) for k, v in loaded.state.items()} == {
        k: bits(v) for k, v in simple(1).items()
    }
    assert len(said) == 1
    assert "checkpoint-000000000002.h5 is not usable (truncated: 1000 bytes where" in said[0]
    assert "checkpoint-000000000001.h5 is used" in said[0]


def test_a_damaged_one_does_not_push_out_a_good_one(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step, simple(step))
    os.truncate(tmp_path / "checkpoint-000000000003.h5", 700)
    save(tmp_path, 2, simple(2))  # went on from 2
    steps = [path.name[-4] for path in published(tmp_path)]
    assert steps == ["3", "2"]
    assert load_latest(tmp_path, lambda sentence: None).step == 2


def test_none_usable_says_what_was_tried_and_what_to_do(tmp_path: Path) -> None:
    for step in (1, 2):
        save(tmp_path, step, simple(step)).write_bytes(b"x" * 600 * step)
    with pytest.raises(CheckpointError) as caught:
        load_latest(tmp_path, nowhere)
    said = str(caught.value)
    assert "checkpoint-000000000001.h5" in said
    assert "checkpoint-000000000002.h5" in said
    assert "move it away to start from the beginning" in said


def test_an_empty_or_missing_folder_is_said_to_be_so(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds none"):
        load_latest(tmp_path, nowhere)
    with pytest.raises(CheckpointError, match="No such file or directory"):
        load_latest(tmp_path / "missing", nowhere)
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="Not a directory"):
        load_latest(tmp_path / "file", nowhere)


def test_what_only_has_the_name_of_a_checkpoint_is_passed_over(tmp_path: Path) -> None:
    good = save(tmp_path, 1, simple(1))
    os.mkfifo(tmp_path / "checkpoint-000000000009.h5")
    (tmp_path / "checkpoint-000000000008.h5").mkdir()
    (tmp_path / "checkpoint-000000000007.h5").symlink_to("nowhere")
    (tmp_path / "checkpoint-000000000006.h5").touch()
    (tmp_path / "checkpoint-000000000005.h5").write_bytes(good.read_bytes())
    (tmp_path / "checkpoint-000000000004.h5").symlink_to(tmp_path / "checkpoint-000000000004.h5")
    said: list[str] = []
    assert load_latest(tmp_path, said.append).path == good
    assert said[0].count("is not usable") == 6
    assert "written for step 1 and renamed" in said[0]


def test_a_checkpoint_removed_by_a_newer_one_meanwhile_is_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1, simple(1))
    verify = checkpoint_file._load

    def late(path: Path, step: int | None, arrays: bool) -> checkpoint_file.Checkpoint:
        monkeypatch.setattr(checkpoint_file, "_load", verify)
        path.unlink()
        save(tmp_path, 2, simple(2))
        return verify(path, step, arrays)

    monkeypatch.setattr(checkpoint_file, "_load", late)
    assert load_latest(tmp_path, nowhere).step == 2


# ------------------------------------------------------------------------------------------ damage


def test_every_truncation_is_recognised(tmp_path: Path) -> None:
    path = save(tmp_path, 1, STATE)
    whole = path.read_bytes()
    for size in [*range(0, 600, 7), *range(600, len(whole), 61), len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match="truncated"):
            load_latest(tmp_path, nowhere)
    path.write_bytes(whole + b"\0")
    with pytest.raises(CheckpointError, match="too long"):
        load_latest(tmp_path, nowhere)


@pytest.mark.matrix
def test_a_flipped_bit_in_any_byte_is_recognised(tmp_path: Path) -> None:
    path = save(tmp_path, 1, STATE)
    whole = path.read_bytes()
    random_bit = random.Random(1)
    with path.open("r+b", buffering=0) as file:
        for offset, byte in enumerate(whole):
            os.pwrite(file.fileno(), bytes([byte ^ 1 << random_bit.randrange(8)]), offset)
            with pytest.raises(CheckpointError):
                load_latest(tmp_path, nowhere)
            os.pwrite(file.fileno(), bytes([byte]), offset)
    load_latest(tmp_path, nowhere)


def test_pages_that_never_reached_the_disk_are_recognised(tmp_path: Path) -> None:
    path = save(tmp_path, 1, simple(1, 10_000))
    whole = path.read_bytes()
    for offset in range(0, len(whole), 4096):
        page = whole[offset : offset + 4096]
        path.write_bytes(whole[:offset] + bytes(len(page)) + whole[offset + 4096 :])
        with pytest.raises(CheckpointError):
            load_latest(tmp_path, nowhere)
