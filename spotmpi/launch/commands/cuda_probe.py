"""What CuPy finds of CUDA on this host.

`spotmpi doctor` runs it as a process of its own: so a driver that does not answer, or a library
that ends its process, is a line of the report.
"""

from __future__ import annotations

import json
import sys
from typing import Any

__all__ = ["found", "main"]

_GIB = 1 << 30


def main() -> None:
    """Print the rows as JSON."""
    import cupy

    json.dump(found(cupy), sys.stdout)


def found(cupy: Any) -> list[tuple[str, str]]:
    """Rows of what, and what was found. Starts CUDA, and takes as long as that does."""
    runtime = cupy.cuda.runtime
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        return [("CUDA", f"CuPy {cupy.__version__} finds no device: {error}")]
    versions = _version(runtime.runtimeGetVersion()), _version(runtime.driverGetVersion())
    rows = [("CUDA", f"CuPy {cupy.__version__}, CUDA {versions[0]}, the driver's {versions[1]}")]
    for number in range(count):
        told = runtime.getDeviceProperties(number)
        memory = f"{told['totalGlobalMem'] / _GIB:.0f} GiB"
        rows.append(
            (f"device {number}", f"{told['name'].decode()}, {memory}: {_shared(cupy, number)}")
        )
    return rows


def _shared(cupy: Any, number: int) -> str:
    """Whether other processes may open what lies there, by trying as far as one process can."""
    runtime = cupy.cuda.runtime
    try:
        with cupy.cuda.Device(number):
            memory = cupy.cuda.Memory(1 << 20)
            runtime.ipcGetMemHandle(memory.ptr)
    except runtime.CUDARuntimeError as error:
        return f"no CUDA IPC ({error}), so sums go by the memory of the host"
    return "workers that share it can sum there (CUDA IPC)"


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


if __name__ == "__main__":
    main()
