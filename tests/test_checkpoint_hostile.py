"""Checkpoints that were made to do harm: nothing is run, followed or allocated, all are refused."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from spotmpi.training.keeping.checkpoint_file import load_latest, save


def seal(path: Path, step: int) -> None:
    """The header, written anew from its description in the module."""
    body = path.read_bytes()[512:]
    text = f"spotmpi checkpoint 1\nstep {step:012}\nbytes {len(body) + 512:015}\n".encode()
    text += b"sha256 " + hashlib.sha256(text + body).hexdigest().encode() + b"\n"
    path.write_bytes(text.ljust(512, b"\0") + body)


def _external_link(file: h5py.File, folder: Path) -> None:
    with h5py.File(folder / "other.h5", "w") as other:
        other["x"] = np.zeros(3)
    file["array/a"] = h5py.ExternalLink(str(folder / "other.h5"), "x")


def _soft_link(file: h5py.File, folder: Path) -> None:
    file["array/a"] = h5py.SoftLink("/about")


def _external_storage(file: h5py.File, folder: Path) -> None:
    file.create_dataset("array/a", (16,), "u1", external=[("/etc/passwd", 0, 16)])


def _virtual(file: h5py.File, folder: Path) -> None:
    layout = h5py.VirtualLayout((3,), "f8")
    layout[...] = h5py.VirtualSource(folder / "other.h5", "x", (3,))
    file.create_virtual_dataset("array/a", layout)


def _chunked_with_a_filter(file: h5py.File, folder: Path) -> None:
    file.create_dataset("array/a", data=np.zeros(100_000), chunks=(1000,), compression="gzip")


def _compact(file: h5py.File, folder: Path) -> None:
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_layout(h5py.h5d.COMPACT)
    group = file.require_group("array").id
    h5py.h5d.create(group, b"a", h5py.h5t.NATIVE_DOUBLE, h5py.h5s.create_simple((3,)), creation)


def _exabytes(file: h5py.File, folder: Path) -> None:
    file.create_dataset("array/a", (2**60,), "u1")


def _exabytes_of_nothing(file: h5py.File, folder: Path) -> None:
    file.create_dataset("array/a", (2**60, 2**60, 0), "u1")


def _texts_of_any_length(file: h5py.File, folder: Path) -> None:
    file.create_dataset("array/a", data=["text"], dtype=h5py.string_dtype())


def _lists_of_any_length(file: h5py.File, folder: Path) -> None:
    file.create_dataset("array/a", (2,), dtype=h5py.vlen_dtype(np.float32))


def _references(file: h5py.File, folder: Path) -> None:
    file.create_dataset("array/a", data=[file.ref], dtype=h5py.ref_dtype)


def _region_references(file: h5py.File, folder: Path) -> None:
    file.create_dataset("array/a", (1,), dtype=h5py.regionref_dtype)


def _opaque(file: h5py.File, folder: Path) -> None:
    file.create_dataset("array/a", data=np.zeros(2, dtype=h5py.opaque_dtype("M8[s]")))


def _compound(file: h5py.File, folder: Path) -> None:
    file.create_dataset("array/a", data=np.zeros(2, dtype=[("x", "f4")]))


def _another_enumeration(file: h5py.File, folder: Path) -> None:
    file.create_dataset("array/a", data=[1], dtype=h5py.enum_dtype({"TRUE": 0, "FALSE": 1}, "i1"))


def _odd_float(file: h5py.File, folder: Path) -> None:
    odd = h5py.h5t.IEEE_F32LE.copy()
    odd.set_fields(31, 20, 11, 0, 20)
    h5py.h5d.create(file.require_group("array").id, b"a", odd, h5py.h5s.create_simple((3,)))


def _named_type(file: h5py.File, folder: Path) -> None:
    file["array/a"] = np.dtype("f4")


def _no_shape(file: h5py.File, folder: Path) -> None:
    file["array/a"] = h5py.Empty("f4")


def _one_array_a_thousand_times(file: h5py.File, folder: Path) -> None:
    file["array/0"] = np.zeros(1000)
    for i in range(1, 1000):
        file[f"array/{i}"] = file["array/0"]


def _a_group_in_itself(file: h5py.File, folder: Path) -> None:
    file["array/a"] = file.require_group("array")


def _the_root_in_itself(file: h5py.File, folder: Path) -> None:
    file["array/a"] = file["/"]


def _too_deep(file: h5py.File, folder: Path) -> None:
    file["array/" + "/".join("a" * 100)] = 1.0


def _a_name_twice(file: h5py.File, folder: Path) -> None:
    file["array/a"] = np.zeros(2)
    file["float/a"] = 1.0


def _unknown_kind(file: h5py.File, folder: Path) -> None:
    file["script/a"] = np.zeros(2)


def _name_that_is_not_text(file: h5py.File, folder: Path) -> None:
    file.create_dataset(b"array/\xff", data=np.zeros(2))


def _float_with_dimensions(file: h5py.File, folder: Path) -> None:
    file["float/a"] = np.zeros(2)


def _int_that_is_none(file: h5py.File, folder: Path) -> None:
    file["int/a"] = np.frombuffer(b"zz", dtype=np.uint8)


def _text_that_is_none(file: h5py.File, folder: Path) -> None:
    file["str/a"] = np.frombuffer(b"\xff", dtype=np.uint8)


def _about_missing(file: h5py.File, folder: Path) -> None:
    del file["about"]


def _about_a_list(file: h5py.File, folder: Path) -> None:
    del file["about"]
    file["about"] = np.frombuffer(b"[1]", dtype=np.uint8)


def _about_too_deep(file: h5py.File, folder: Path) -> None:
    del file["about"]
    file["about"] = np.frombuffer(b"[" * 200_000, dtype=np.uint8)


HOSTILE = [
    value
    for name, value in list(globals().items())
    if name.startswith("_") and getattr(value, "__module__", None) == __name__
]


@pytest.mark.parametrize("write", HOSTILE, ids=lambda f: f.__name__.strip("_"))
def test_a_file_that_was_made_to_do_harm_is_refused(
    tmp_path: Path, write: Callable[[h5py.File, Path], None]
) -> None:
    path = tmp_path / "checkpoint-000000000002.h5"
    with h5py.File(path, "w", userblock_size=512) as file:
        file["about"] = np.frombuffer(b"{}", dtype=np.uint8)
        write(file, tmp_path)
    seal(path, 2)
    save(tmp_path, 1, {})
    said: list[str] = []
    assert load_latest(tmp_path, said.append).step == 1
    assert "checksum does not match" not in said[0], "not sealed: this tested nothing"


def test_the_files_above_are_refused_for_what_they_hold_alone(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint-000000000002.h5"
    with h5py.File(path, "w", userblock_size=512) as file:
        file["about"] = np.frombuffer(b"{}", dtype=np.uint8)
        file["array/a"] = np.zeros(3)
    seal(path, 2)
    assert load_latest(tmp_path, pytest.fail).step == 2


def test_flipped_bits_under_a_right_checksum_do_no_harm(tmp_path: Path) -> None:
    """What a vandal with the checksum at hand can do: any result but a crash, a hang, or memory
    beyond the file's size (a process of its own, so that a crash is seen as one)."""
    path = tmp_path / "checkpoint-000000000001.h5"
    with h5py.File(path, "w", userblock_size=512, libver="earliest") as file:  # no sums inside
        file["about"] = np.frombuffer(b"{}", dtype=np.uint8)
        file["array/flags"] = np.array([True])
        file["int/step"] = 3
        for i in range(5):
            file[f"array/params/{i}"] = np.zeros((2, 3), dtype=np.float32)
    seal(path, 1)
    script = """
import hashlib, random, resource, sys
from pathlib import Path
from spotmpi.training.keeping.checkpoint_file import load_latest
from spotmpi.errors import CheckpointError
path = Path(sys.argv[1])
limit = 4 << 30
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
whole, chance, refused = path.read_bytes(), random.Random(7), 0
text = whole[: whole.index(b"sha256")]
for _ in range(700):
    body = bytearray(whole[512:])
    for _ in range(chance.choice((1, 1, 2, 8))):
        body[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
    sum = hashlib.sha256(text + body).hexdigest().encode()
    path.write_bytes((text + b"sha256 " + sum + b"\\n").ljust(512, b"\\0") + body)
    try:
        load_latest(path.parent, print)
    except CheckpointError as error:
        assert "checksum does not match" not in str(error)
        refused += 1
print(refused)
"""
    command = [sys.executable, "-c", script, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100
