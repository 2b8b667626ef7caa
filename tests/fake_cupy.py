"""As much of CuPy as spotmpi uses, on a device that is none: its memory is the host's.

As the real one it never becomes a NumPy array by itself. It is as late as a device may be: what is
put into a stream is done when somebody waits for that stream, and not before, so whoever forgets to
wait finds rubbish. Kernels are the CUDA source itself, compiled for the CPU (`gpu_on_cpu`). Memory
that is freed is rubbish at once, for those that have opened it, too.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import mmap
import os
import struct
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np

from tests import gpu_on_cpu

__version__ = "0 (fake)"

counted: Counter[str] = Counter()
"""What was done so far, by name."""

_RUBBISH = 0xFF
"""Bytes of it; four or eight of them are NaN."""

_DEVICE = threading.RLock()
_HANDLES = itertools.count(1)
"""One thread at a time has the device."""

_current = threading.local()


class CUDARuntimeError(Exception):
    """What the driver would say."""


def _refused(*_: object, **__: object) -> NoReturn:
    raise TypeError("Implicit conversion to a NumPy array is not allowed")


# Streams.


class Stream:
    """Work that is done in order, and late."""

    null: Stream

    def __init__(self, null: bool = False, non_blocking: bool = False) -> None:
        self._work: deque[Callable[[], None]] = deque()
        self._given = self._done = 0
        self._before: list[Stream] = []
        self.ptr = next(_HANDLES)
        """Its handle. No other stream gets it, so that what was given to one never counts as done
        in another one."""

    def __enter__(self) -> Stream:
        self._before.append(get_current_stream())
        _current.stream = self
        return self

    def __exit__(self, *_: object) -> None:
        _current.stream = self._before.pop()

    def synchronize(self) -> None:
        """Do all that was given."""
        counted["synchronize"] += 1
        self.do_until(self._given)

    def wait_event(self, event: Event) -> None:
        """Go on after that."""
        self.put(event.happen)

    def put(self, work: Callable[[], None]) -> None:
        """Something more to be done."""
        with _DEVICE:
            self._work.append(work)
            self._given += 1

    def do_until(self, number: int) -> None:
        """What was given before."""
        with _DEVICE:
            while self._done < number:
                self._done += 1
                self._work.popleft()()

    @property
    def given(self) -> int:
        """So many things."""
        return self._given

    @property
    def waits(self) -> bool:
        """Whether there is something to be done yet."""
        return self._done < self._given


Stream.null = Stream()


def get_current_stream() -> Stream:
    """Of this thread."""
    found: Stream = getattr(_current, "stream", Stream.null)
    return found


class Event:
    """A place in a stream."""

    def __init__(self, block: bool = False, disable_timing: bool = False) -> None:
        self._at: tuple[Stream, int] | None = None

    def record(self, stream: Stream | None = None) -> None:
        """Here."""
        stream = stream or get_current_stream()
        self._at = stream, stream.given

    def synchronize(self) -> None:
        """Until the stream has come there."""
        counted["synchronize"] += 1
        self.happen()

    def happen(self) -> None:
        """The same, for a stream that waits."""
        if self._at is not None:
            self._at[0].do_until(self._at[1])


# Memory.

_HANDLE = struct.Struct("<qqqq")
_MAPPED: dict[int, tuple[mmap.mmap, int, int]] = {}
"""By address what was allocated, or opened: the memory, its descriptor, its size."""


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _malloc(size: int) -> int:
    """Memory with a handle: as cudaMalloc gives it, full of rubbish."""
    counted["malloc"] += 1
    descriptor = os.memfd_create("fake-device", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, max(size, 1))
    memory = mmap.mmap(descriptor, max(size, 1))
    address = _address(memory)
    ctypes.memset(address, _RUBBISH, size)
    _MAPPED[address] = memory, descriptor, size
    return address


def _free(address: int) -> None:
    counted["free"] += 1
    _, descriptor, size = _MAPPED.pop(address)
    ctypes.memset(address, _RUBBISH, size)
    os.close(descriptor)


def _base_of(address: int) -> int:
    for base, (_, _, size) in _MAPPED.items():
        if base <= address < base + size:
            return base
    raise CUDARuntimeError("cudaErrorInvalidValue: that is memory of a pool, or of nobody")


def _get_handle(address: int) -> bytes:
    """Of the whole allocation, wherever in it this address is: as CUDA has it."""
    base = _base_of(address)
    _, descriptor, size = _MAPPED[base]
    return _HANDLE.pack(os.getpid(), descriptor, size, 0).ljust(64, b"\0")


def _open_handle(handle: bytes, flags: int = 1) -> int:
    process, descriptor, size, _ = _HANDLE.unpack_from(handle)
    path = f"/proc/{process}/fd/{descriptor}"
    try:
        if not os.readlink(path).startswith("/memfd:fake-device"):
            raise FileNotFoundError(path)
        opened = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise CUDARuntimeError(f"cudaErrorMapBufferObjectFailed: {error}") from error
    counted["opened"] += 1
    memory = mmap.mmap(opened, max(size, 1))
    address = _address(memory)
    _MAPPED[address] = memory, opened, size
    return address


def unreachable(handle: bytes, flags: int = 1) -> int:
    """As `ipcOpenMemHandle` where a device cannot reach another one's memory."""
    raise CUDARuntimeError("cudaErrorPeerAccessUnsupported: peer access is not supported")


def _close_handle(address: int) -> None:
    counted["closed"] += 1
    _, descriptor, _ = _MAPPED.pop(address)
    os.close(descriptor)


runtime = SimpleNamespace(
    CUDARuntimeError=CUDARuntimeError,
    malloc=_malloc,
    free=_free,
    ipcGetMemHandle=_get_handle,
    ipcOpenMemHandle=_open_handle,
    ipcCloseMemHandle=_close_handle,
    getDevice=lambda: 0,
    getDeviceCount=lambda: 1,
    getDeviceProperties=lambda number: {"name": b"Fake", "totalGlobalMem": 1 << 30},
    deviceGetPCIBusId=lambda number: "0000:00:00.0",
    runtimeGetVersion=lambda: 13000,
    driverGetVersion=lambda: 13000,
)


class Memory:
    """An allocation of its own."""

    def __init__(self, size: int) -> None:
        self.size, self.device_id = size, 0
        self.ptr = _malloc(size)

    def __del__(self) -> None:
        _free(self.ptr)


class UnownedMemory:
    """Somebody else's."""

    def __init__(self, ptr: int, size: int, owner: object, device_id: int = -1) -> None:
        self.ptr, self.size, self.owner, self.device_id = ptr, size, owner, 0


class MemoryPointer:
    """A place in memory."""

    def __init__(self, mem: Any, offset: int) -> None:
        self.mem, self.ptr, self.device_id = mem, mem.ptr + offset, 0

    def __add__(self, offset: int) -> MemoryPointer:
        return MemoryPointer(self.mem, self.ptr - self.mem.ptr + offset)

    def _copy(self, what: str, to: int, source: int, size: int, keep: Any, stream: Any) -> None:
        counted[what] += 1
        counted[f"{what} bytes"] += size
        held = self.mem, keep

        def copy() -> None:
            assert held
            ctypes.memmove(to, source, size)

        (stream or get_current_stream()).put(copy)

    def copy_to_host_async(self, mem: int, size: int, stream: Stream | None = None) -> None:
        """To pinned memory only: anything else would not be asynchronous."""
        self._copy("to host", mem, self.ptr, size, _pinned_at(mem, size), stream)

    def copy_from_host_async(self, mem: int, size: int, stream: Stream | None = None) -> None:
        """From pinned memory only."""
        self._copy("from host", self.ptr, mem, size, _pinned_at(mem, size), stream)

    def copy_from_device_async(
        self, src: MemoryPointer, size: int, stream: Stream | None = None
    ) -> None:
        """From other memory of a device."""
        self._copy("on device", self.ptr, src.ptr, size, src, stream)


_PINNED: dict[int, int] = {}


class _Pinned(bytearray):
    """Memory of the host that the device reads and writes."""

    @property
    def ptr(self) -> int:
        return ctypes.addressof(ctypes.c_char.from_buffer(self))


def _alloc_pinned_memory(size: int) -> _Pinned:
    counted["pinned"] += 1
    counted["pinned bytes"] += size
    made = _Pinned(bytes([_RUBBISH]) * size)
    _PINNED[made.ptr] = size
    return made


def _pinned_at(address: int, size: int) -> None:
    pinned = _PINNED.copy()  # which other threads, and the collector, may change
    if not any(at <= address and address + size <= at + its for at, its in pinned.items()):
        raise AssertionError("copies beside the worker need pinned memory of the host")


# Arrays.


class Device:
    """The only one."""

    id = 0

    def __init__(self, number: int = 0) -> None:
        assert number == 0

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def synchronize(self) -> None:
        """All streams that matter to tests."""
        get_current_stream().synchronize()


class ndarray:  # noqa: N801 -- CuPy's name for it
    """An array on the device."""

    __array_ufunc__ = None
    __array__ = __len__ = __iter__ = __bool__ = __float__ = __int__ = __index__ = _refused
    __array_interface__ = property(_refused)

    def __init__(
        self, shape: Any, dtype: Any = float, memptr: Any = None, _is: np.ndarray | None = None
    ) -> None:
        self._mem: Any = memptr
        if _is is not None:
            self._is = _is
        elif memptr is not None:
            size = math.prod(shape if isinstance(shape, tuple) else (shape,))
            raw = (ctypes.c_char * (size * np.dtype(dtype).itemsize)).from_address(memptr.ptr)
            self._is = np.frombuffer(raw, dtype, size).reshape(shape)
        else:
            self._is = np.frombuffer(
                bytearray([_RUBBISH]) * (int(np.prod(shape)) * np.dtype(dtype).itemsize), dtype
            ).reshape(shape)

    def __del__(self) -> None:
        # A pool gives memory to others in the order of its stream.
        if get_current_stream is None:
            return  # the interpreter ends
        kept, stream = self._is, get_current_stream()
        if stream.waits:
            stream.put(lambda: kept.shape and None)

    def _like(self, array: np.ndarray) -> ndarray:
        return ndarray(array.shape, array.dtype, self._mem, array)

    dtype = property(lambda self: self._is.dtype)
    shape = property(lambda self: self._is.shape)
    size = property(lambda self: self._is.size)
    ndim = property(lambda self: self._is.ndim)
    nbytes = property(lambda self: self._is.nbytes)
    itemsize = property(lambda self: self._is.itemsize)
    flags = property(lambda self: self._is.flags)
    device = property(lambda self: Device())
    T = property(lambda self: self._like(self._is.T))

    @property
    def data(self) -> MemoryPointer:
        """Where it begins."""
        return MemoryPointer(SimpleNamespace(ptr=self._is.ctypes.data, keep=self), 0)

    def __getitem__(self, key: Any) -> ndarray:
        found = self._is[key]
        return self._like(found if isinstance(found, np.ndarray) else np.asarray(found))

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(value, np.ndarray):
            _refused()
        source = value._is if isinstance(value, ndarray) else value
        get_current_stream().put(lambda: self._is.__setitem__(key, source))

    def reshape(self, *shape: Any) -> ndarray:
        """A view, if it is contiguous."""
        assert self._is.flags.c_contiguous
        return self._like(self._is.reshape(*shape))

    def view(self, dtype: Any) -> ndarray:
        """The same bytes."""
        return self._like(self._is.view(dtype))

    def __rmul__(self, scale: float) -> ndarray:
        """A new array, by and by."""
        made = empty(self.shape, self.dtype)
        get_current_stream().put(lambda: np.multiply(scale, self._is, out=made._is))
        return made

    def astype(self, dtype: Any) -> ndarray:
        """A copy, by and by."""
        made = empty(self.shape, dtype)
        made[...] = self
        return made

    def fill(self, value: float) -> None:
        """By and by."""
        get_current_stream().put(lambda: self._is.fill(value))

    def get(self, stream: Stream | None = None, order: str = "C", out: Any = None) -> np.ndarray:
        """A copy in the memory of the host, once the stream has come so far."""
        counted["get"] += 1
        (stream or get_current_stream()).synchronize()
        if out is None:
            return np.array(self._is, order="C")
        assert out.flags.c_contiguous
        assert (out.dtype, out.shape) == (self.dtype, self.shape)
        out[...] = self._is
        return np.asarray(out)

    def set(self, arr: np.ndarray, stream: Stream | None = None) -> None:
        """Overwrite it."""
        counted["set"] += 1
        if not isinstance(arr, np.ndarray):
            raise TypeError("Only numpy.ndarray can be set to cupy.ndarray")
        if arr.dtype != self.dtype or arr.shape != self.shape:
            raise TypeError(f"{arr.dtype}{arr.shape} array cannot be set to this one")
        # What is read late may have changed by then.
        (stream or get_current_stream()).put(lambda: self._is.__setitem__(..., arr))


def zeros(shape: Any, dtype: Any = float) -> ndarray:
    """Of a pool."""
    return ndarray(shape, dtype, None, np.zeros(shape, dtype))


def empty(shape: Any, dtype: Any = float) -> ndarray:
    """Full of rubbish."""
    return ndarray(shape, dtype)


def asarray(array: Any, dtype: Any = None) -> ndarray:
    """A copy of NumPy's on the device."""
    if isinstance(array, ndarray):
        return array
    return ndarray(0, "u1", None, np.array(array, dtype, order="C"))


def ascontiguousarray(array: ndarray) -> ndarray:
    """Itself if it is; else a copy."""
    if array.flags.c_contiguous:
        return array
    made = empty(array.shape, array.dtype)
    made[...] = array
    return made


def _compile(code: str, options: Sequence[str]) -> tuple[bytes, None]:
    """Source is the CPU's code, too. `RawModule` is missing: it does not keep to its options."""
    assert "--fmad=false" in options
    return code.encode(), None


class Module:
    """CUDA source, on the CPU."""

    def load(self, code: bytes) -> None:
        """What a compiler has made."""
        self._compiled = gpu_on_cpu.compiled(code.decode())

    def get_function(self, name: str) -> Callable[..., None]:
        """A kernel."""

        def launch(grid: tuple[int, ...], block: tuple[int, ...], args: Sequence[Any]) -> None:
            counted["kernel"] += 1
            given = [_argument(one) for one in args]
            held = list(args)

            def work() -> None:
                assert held is not None
                self._compiled.launch(name, grid[0], block[0], given)

            get_current_stream().put(work)

        return launch


def _argument(one: Any) -> Any:
    if isinstance(one, ndarray):
        return np.uint64(one._is.ctypes.data)
    if isinstance(one, np.generic):
        return one
    raise TypeError(f"kernels take CuPy arrays and NumPy scalars; got {type(one).__name__}")


cuda = SimpleNamespace(
    Stream=Stream,
    Event=Event,
    Device=Device,
    Memory=Memory,
    MemoryPointer=MemoryPointer,
    UnownedMemory=UnownedMemory,
    alloc_pinned_memory=_alloc_pinned_memory,
    get_current_stream=get_current_stream,
    compiler=SimpleNamespace(compile_using_nvrtc=_compile),
    function=SimpleNamespace(Module=Module),
    runtime=runtime,
)


def install() -> None:
    """From now on it is what `import cupy` gives."""
    sys.modules["cupy"] = sys.modules[__name__]


@contextmanager
def installed() -> Iterator[None]:
    """In here only."""
    from spotmpi.kernels import gpu

    before = sys.modules.get("cupy")
    install()
    try:
        yield
    finally:
        for forgets in (gpu._kernel, gpu._module, gpu._uploaded):
            forgets.cache_clear()
        if before is None:
            del sys.modules["cupy"]
        else:
            sys.modules["cupy"] = before
