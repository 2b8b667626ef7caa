"""A checkpoint file: all that a run needs to go on, in one file that survives its writer.

A file named ``checkpoint-<step, 12 digits>.h5`` is plain HDF5 behind a 512-byte header of text
(HDF5's own *user block*, so that ``h5py.File(path)`` and ``h5dump`` open it as it is)::

    spotmpi checkpoint 1
    step 000000000040
    bytes 000000200002560
    sha256 <64 hex digits over the three lines above and over every byte from 512 to the end>

What its values become in it: `entries`. The file keeps three promises:

- *A writer killed at any moment loses nothing.* The file is written under a temporary name in the
  same folder, flushed to the disk, and only then renamed. The folder is flushed too before an
  older checkpoint is removed. The two last ones stay. The last one whose parameters are not finite
  (``checkpoint-<step>.not-finite.h5``) stays beside them, and removes none of them.
- *A flipped bit or a missing end is seen*, anywhere in the file, because one sum covers all of it.
  It is seen before the HDF5 library parses a single byte. The sum is SHA-256: current processors
  have instructions for it (1.5 GB/s, where BLAKE2b makes 0.5), it cannot miss damage by accident
  as 32 bits of CRC can, and OpenSSL computes it without the GIL.
- *A file cannot make the reader run, open or allocate anything.* The sum is no signature: a user
  who may write into the folder may write a checkpoint. So the structure is an allowlist, checked
  before any data is read: hard links only, numbers only, contiguous storage inside this file, and
  no more bytes in all than the file has. Nothing is pickled or evaluated.

All functions are local and blocking; none is collective. This is the only module that imports h5py.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import resource
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
from h5py import h5d, h5g, h5l, h5o, h5p, h5s, h5t

from spotmpi.errors import CheckpointError, UsageError
from spotmpi.training.keeping import checkpoint_folder
from spotmpi.training.keeping.checkpoint_folder import STEP_DIGITS, why
from spotmpi.training.keeping.entries import (
    DEPTH,
    DTYPES,
    Value,
    about_entry,
    about_of,
    entries_of,
    value_of,
)
from spotmpi.training.keeping.file_header import (
    HEADER_BYTES,
    Damaged,
    header_of,
    refuse,
    title_of,
    verify,
)

__all__ = ["Checkpoint", "check_arrays", "load_file", "load_latest", "save"]

_STORED = {dtype: h5t.py_create(dtype, logical=True) for dtype in DTYPES}
_OVERHEAD = 4096  # most bytes that one dataset or group adds to a file


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read. ``state`` has the values by name; the caller owns its arrays,
    and may write them. ``path`` is its file, and ``about`` what its writer left for the reader."""

    step: int
    state: dict[str, Value]
    path: Path
    about: dict[str, Any] = field(default_factory=dict)


# ------------------------------------------------------------------------------------- writing


def check_arrays(described: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
    """Raise UsageError if `save` would refuse arrays of these names, dtypes and shapes."""
    entries_of({n: np.broadcast_to(np.zeros((), d), s) for n, (d, s) in described.items()})


def save(
    folder: Path,
    step: int,
    state: Mapping[str, Value],
    about: Mapping[str, Any] | None = None,
    finite: bool = True,
) -> Path:
    """Write the checkpoint of ``step`` and return its path once it is safe on the disk.

    ``state`` maps names such as ``momentum/velocity/0`` to values. ``about`` is anything that JSON
    can say. ``finite``: True if a run may go on from the model in it. Blocking, for about the time
    that the disk takes for the bytes. One worker calls it, but several at once do no harm: each
    file appears whole, and the last of the same step stays.

    Raises UsageError for a value that cannot be kept, before anything is touched, and
    CheckpointError if the disk refuses: what was there stays, and nothing half is left.
    """
    if not 0 <= step < 10**STEP_DIGITS:
        raise UsageError(f"a checkpoint's step is 0 to {10**STEP_DIGITS - 1}, got {step}")
    entries = entries_of(state)
    entries["about"] = about_entry(about or {})
    path = checkpoint_folder.path_of(folder, step, finite)
    try:
        temporary, fd = checkpoint_folder.open_temporary(folder, step)
        try:
            _write(fd, step, entries)
            temporary.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        finally:
            now = os.fstat(fd).st_mtime
            os.close(fd)
        checkpoint_folder.flush(folder)
    except (OSError, RuntimeError) as error:
        raise CheckpointError(
            f"the checkpoint of step {step} could not be written into {folder}: {why(error)}; "
            "those that were there are untouched"
        ) from error
    checkpoint_folder.tidy(folder, step, now, finite)
    return path


def _write(fd: int, step: int, entries: Mapping[str, npt.NDArray[Any]]) -> None:
    """Fill the file and flush it to the disk; the header comes last.

    HDF5 never writes to the disk: after a write that fails (a full disk) it can damage the heap of
    this process. It lays the file out in memory, without the arrays' bytes, and we put the two
    together. This needs no second copy of the arrays.
    """
    layout = os.memfd_create("checkpoint", os.MFD_CLOEXEC)
    try:
        placed = _lay_out(layout, entries)
        size = os.fstat(layout).st_size
        text = title_of(step, size)
        checksum = hashlib.sha256(text)
        os.lseek(fd, HEADER_BYTES, os.SEEK_SET)
        for piece in _pieces(layout, size, placed):
            checksum.update(piece)
            while piece:
                piece = piece[os.write(fd, piece) :]
    finally:
        os.close(layout)
    if os.pwrite(fd, header_of(text, checksum.hexdigest()), 0) != HEADER_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.fsync(fd)


def _lay_out(
    fd: int, entries: Mapping[str, npt.NDArray[Any]]
) -> list[tuple[int, npt.NDArray[Any]]]:
    """Write all but the arrays' bytes into a file in memory; return where they belong, in order."""
    bytes_at_most = sum(a.nbytes + _OVERHEAD * (2 + name.count("/")) for name, a in entries.items())
    if bytes_at_most > resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))  # it limits files in memory as well
    creation = h5p.create(h5p.DATASET_CREATE)
    creation.set_layout(h5d.CONTIGUOUS)
    creation.set_alloc_time(h5d.ALLOC_TIME_EARLY)
    creation.set_fill_time(h5d.FILL_TIME_NEVER)
    creation.set_obj_track_times(False)  # the same state is the same bytes
    link = h5p.create(h5p.LINK_CREATE)
    link.set_create_intermediate_group(True)
    link.set_char_encoding(h5t.CSET_UTF8)
    placed = []
    with (
        open(fd, "r+b", buffering=0, closefd=False) as memory,
        h5py.File(memory, "w", userblock_size=HEADER_BYTES) as file,
    ):
        for name, array in entries.items():
            space = h5s.create_simple(array.shape) if array.ndim else h5s.create(h5s.SCALAR)
            stored = _STORED[array.dtype]
            dataset = h5d.create(file.id, name.encode(), stored, space, creation, link)
            if array.size:
                placed.append((dataset.get_offset(), array))
    return sorted(placed, key=lambda place: place[0])


def _pieces(
    layout: int, size: int, placed: list[tuple[int, npt.NDArray[Any]]]
) -> Iterator[memoryview]:
    """Yield the bytes of the file behind its header, in order."""
    at = HEADER_BYTES
    for offset, array in placed:
        yield memoryview(os.pread(layout, offset - at, at))
        yield np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        at = offset + array.nbytes
    yield memoryview(os.pread(layout, size - at, at))


# ------------------------------------------------------------------------------------- reading


def load_latest(folder: Path, warn: Callable[[str], None], arrays: bool = True) -> Checkpoint:
    """Read the newest checkpoint that is whole. Blocking; changes nothing in the folder.

    Without ``arrays`` all is verified as well, and the state is left out.

    Each newer one that is damaged, or not finite, is passed over. ``warn`` is told so in one
    sentence that names it, its fault and the one used. Raises CheckpointError if none is usable,
    with what was tried.
    """
    while True:
        faults: list[str] = []
        try:
            paths = checkpoint_folder.published(folder)
        except OSError as error:
            raise CheckpointError(
                f"there is no checkpoint to resume from: {folder}: {why(error)}; "
                "name the folder of an earlier run"
            ) from None
        for path in paths:
            if not checkpoint_folder.is_finite(path):
                faults.append(f"{path.name} is not usable (its parameters are not finite)")
                continue
            try:
                checkpoint = _load(path, checkpoint_folder.step_of(path), arrays)
            except Damaged as damage:
                faults.append(f"{path.name} is not usable ({damage})")
                continue
            except FileNotFoundError:
                if path.is_symlink():
                    faults.append(f"{path.name} is not usable (a link to nowhere)")
                    continue
                break  # a writer of a newer one has just removed it: look again
            if faults:
                warn(f"in {folder} {', '.join(faults)}: {path.name} is used instead")
            return checkpoint
        else:
            if not faults:
                raise CheckpointError(
                    f"there is no checkpoint to resume from: {folder} holds none; "
                    "name the folder of an earlier run, the same one on all hosts"
                )
            raise CheckpointError(
                f"no checkpoint in {folder} is usable: {', '.join(faults)}; restore the folder "
                "from a copy, or move it away to start from the beginning"
            )


def load_file(path: Path) -> Checkpoint:
    """Read one checkpoint, under any file name. Blocking. Raises CheckpointError."""
    try:
        return _load(path, None)
    except (Damaged, OSError) as fault:
        raise CheckpointError(f"the checkpoint {path} cannot be read: {why(fault)}") from None


def _load(path: Path, step: int | None, arrays: bool = True) -> Checkpoint:
    """Read a file, which must be of ``step`` if that is given. Raises FileNotFoundError."""
    try:
        # O_NONBLOCK: a named pipe under this name must not make us wait for its writer.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Damaged(why(error)) from None
    try:
        step = verify(fd, step)
        # The same open file, not the same name: what was verified is what is parsed.
        with h5py.File(f"/proc/self/fd/{fd}", "r", locking=False) as file:
            datasets = dict(_datasets(file.id, os.fstat(fd).st_size))
            about = about_of(_read(datasets.pop("about", None)))
            if not arrays:
                datasets.clear()
            state = dict(value_of(name, _read(dataset)) for name, dataset in datasets.items())
            if len(state) != len(datasets):
                refuse("it holds a name twice")
    # OverflowError and the others: h5py and NumPy raise them for damaged shapes and names.
    except (OSError, RuntimeError, LookupError, ValueError, TypeError, OverflowError) as error:
        if not os.fstat(fd).st_nlink:  # it was removed meanwhile, and HDF5 needs its name
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from error
        raise Damaged(why(error)) from error
    finally:
        os.close(fd)
    return Checkpoint(step, state, path, about)


def _datasets(root: h5g.GroupID, size: int) -> Iterator[tuple[str, h5d.DatasetID]]:
    """Yield every dataset with its path. Refuse all that this module would not have written, before
    any data is read or allocated: a file can claim exabytes, or the same bytes a thousand times."""
    left = size
    seen: set[int] = set()
    groups: list[tuple[str, h5g.GroupID]] = [("", root)]
    while groups:
        prefix, group = groups.pop()
        for raw in group:
            name = prefix + raw.decode()
            if group.links.get_info(raw).type != h5l.TYPE_HARD:
                refuse(f"{name!r} is a link to elsewhere")
            entry = h5o.open(group, raw)
            address = h5o.get_info(entry).addr
            if address in seen:
                refuse(f"{name!r} is there under two names")
            seen.add(address)
            if isinstance(entry, h5g.GroupID) and name.count("/") < DEPTH:
                groups.append((f"{name}/", entry))
            elif isinstance(entry, h5d.DatasetID):
                left -= _check_dataset(name, entry, size)
                if left < 0:
                    refuse("its arrays claim more bytes than the file has")
                yield name, entry
            else:
                refuse(f"{name!r} is neither an array nor a folder of arrays")


def _check_dataset(name: str, dataset: h5d.DatasetID, size: int) -> int:
    """Return how many bytes a dataset holds. Refuse it if they are not all in this file."""
    dtype = _dtype(dataset)
    if dtype is None:
        refuse(f"{name!r} has a type that is never written")
    if dataset.get_space().get_simple_extent_type() not in (h5s.SIMPLE, h5s.SCALAR):
        refuse(f"{name!r} has no shape")
    creation = dataset.get_create_plist()
    # Chunked data may name filters, which are plugins: code. Virtual and external data lie in
    # other files. We write contiguous data of this file only.
    if creation.get_layout() != h5d.CONTIGUOUS or creation.get_external_count():
        refuse(f"{name!r} is not stored in one piece in this file")
    claimed = dtype.itemsize
    for extent in dataset.shape:
        claimed *= int(extent)
    if claimed:
        offset = dataset.get_offset()
        if dataset.get_storage_size() != claimed or offset is None or offset + claimed > size:
            refuse(f"{name!r} claims {claimed} bytes that are not in the file")
    return claimed


def _dtype(dataset: h5d.DatasetID) -> np.dtype[Any] | None:
    """Return the dtype if it is on the list, found by comparison: h5py's own translation of a type
    from a file would build Python objects for references and variable lengths."""
    stored = dataset.get_type()
    return next((dtype for dtype, known in _STORED.items() if stored.equal(known)), None)


def _read(dataset: h5d.DatasetID | None) -> npt.NDArray[Any]:
    if dataset is None:
        refuse("an entry that every checkpoint has is missing")
    array = np.empty(dataset.shape, dtype=_dtype(dataset))
    if array.size:
        dataset.read(h5s.ALL, h5s.ALL, array)
    return array
