"""CUDA's own compiler takes the GPU's kernels. It needs no driver for that."""

from __future__ import annotations

import re
from typing import Any

import pytest
from cuda.bindings import nvrtc

from spotmpi.kernels import gpu
from tests.gpu_on_cpu import kernels_in

MACHINES = ("sm_80", "sm_90")
"""A100; H100 and H200."""


def told(answer: tuple[Any, ...]) -> Any:
    """What a call returns, beside its error."""
    error, *rest = answer
    assert error == nvrtc.nvrtcResult.NVRTC_SUCCESS, error
    return rest[0] if rest else None


def compiled(source: str, machine: str, *options: str) -> tuple[str, bytes]:
    """PTX and machine code. An AssertionError that has the compiler's words if it fails."""
    program = told(nvrtc.nvrtcCreateProgram(source.encode(), b"kernels.cu", 0, [], []))
    try:
        given = [f"--gpu-architecture={machine}".encode(), *(one.encode() for one in options)]
        failed = nvrtc.nvrtcCompileProgram(program, len(given), given)[0]
        log = bytearray(told(nvrtc.nvrtcGetProgramLogSize(program)))
        told(nvrtc.nvrtcGetProgramLog(program, log))
        assert failed == nvrtc.nvrtcResult.NVRTC_SUCCESS, log.decode()
        ptx = bytearray(told(nvrtc.nvrtcGetPTXSize(program)))
        told(nvrtc.nvrtcGetPTX(program, ptx))
        cubin = bytearray(told(nvrtc.nvrtcGetCUBINSize(program)))
        told(nvrtc.nvrtcGetCUBIN(program, cubin))
        return ptx.decode(), bytes(cubin)
    finally:
        told(nvrtc.nvrtcDestroyProgram(program))


def fused(ptx: str) -> list[str]:
    """The instructions that make one operation of a product and a sum of floats."""
    return re.findall(r"\bfma\.\S+", ptx)


def flushed(ptx: str) -> list[str]:
    """Those that make zeros of the smallest numbers, or are less exact than IEEE 754."""
    return re.findall(r"\b\w+\.(?:\w+\.)*(?:ftz|approx|full)\S*", ptx)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", gpu.SOURCES)
def test_all_kernels_compile_and_round_as_the_definition_does(name: str, machine: str) -> None:
    source = gpu.source(name)
    ptx, cubin = compiled(source, machine, *gpu.OPTIONS)
    assert sorted(re.findall(r"\.entry (\w+)\(", ptx)) == sorted(kernels_in(source))
    assert cubin.startswith(b"\x7fELF")
    assert fused(ptx) == []
    assert flushed(ptx) == []


def test_all_kernels_that_are_asked_for_are_there() -> None:
    there = {kernel for name in gpu.SOURCES for kernel in kernels_in(gpu.source(name))}
    asked = {"add_lanes", "digest", "begin", "most", "end", "widen"}
    for real in gpu.REALS.values():
        asked |= {
            f"{one}_{real}"
            for one in "accumulate blend exchange sgd momentum pack unpack finite".split()
        }
        asked |= {f"{one}_{real}" for one in "adam lamb_norms lamb sum_of_squares".split()}
        counts = range(1, gpu.AT_A_TIME + 1)
        asked |= {f"{one}_{count}_{real}" for one in ("sum", "add") for count in counts}
    assert there == asked


def test_this_would_find_what_it_looks_for() -> None:
    source = gpu.source("arithmetic.cu")
    assert fused(compiled(source, "sm_90", "--std=c++17")[0])
    assert flushed(compiled(gpu.source("narrow.cu"), "sm_80", "--use_fast_math")[0])
    with pytest.raises(AssertionError, match=r"kernels\.cu.*error"):
        compiled(source.replace("u64 sum = 0;", ""), "sm_90", *gpu.OPTIONS)
