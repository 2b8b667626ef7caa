"""What is compiled once, and what happens where nothing can be kept. With real processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from numba.core.registry import cpu_target

from spotmpi.kernels import cache

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 120

TINY = """
import sys, warnings
from numba import float32, float64
from spotmpi.kernels.cache import compiled

def double(x):
    for i in range(x.size):
        x[i] *= 2

def count(x):
    return x.size

if __name__ == "__main__":
    import numpy as np
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for real, dtype in (float32, "float32"), (float64, "float64"):
            code = compiled({double: (real[::1],), count: (real[::1],)})
            x = np.ones(3, dtype)
            code.double(x)
            assert x.tolist() == [2, 2, 2] and code.count(x) == 3
    for warning in caught:
        print(warning.category.__name__, warning.message)
    if "numba.np.npyimpl" in sys.modules:
        print("could compile")
"""

KERNELS = """
import warnings
import numpy as np
from spotmpi.kernels import cpu
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    cpu.FEW = 0
    x = np.ones(3, "float32")
    cpu.accumulate(x, x)
    cpu.scaled_sum(x, [np.ones(3, "float32")] * 5, [1.0] * 5)
    assert x.tolist() == [5, 5, 5]
for warning in caught:
    print(warning.category.__name__, warning.message)
"""


DO_WITHOUT = """
import sys
import numba
import numpy as np
from spotmpi.kernels import cpu
x = np.ones(cpu.FEW, "float32")
cpu.accumulate(x, x)
assert not [name for name in sys.modules if name.startswith("scipy.linalg")]

@numba.njit
def product(a):
    return a @ a

assert product(np.eye(2)).tolist() == np.eye(2).tolist()
assert "scipy.linalg.cython_blas" in sys.modules
"""


def environment(**changes: str) -> dict[str, str]:
    return {**os.environ, "NUMBA_DEBUG_CACHE": "1", **changes}


def start(script: Path, env: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(script)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, output
    return output


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    script = tmp_path_factory.mktemp("scripts") / "tiny.py"
    script.write_text(TINY)
    return script


@pytest.fixture(scope="module")
def filled(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache that one process left behind."""
    folder = tmp_path_factory.mktemp("cache") / "not" / "made" / "yet"
    output = finish(start(tiny, environment(NUMBA_CACHE_DIR=str(folder))))
    assert output.count("data saved") == 4
    assert "could compile" in output
    return folder


@pytest.fixture
def spoilt(filled: Path, tmp_path: Path) -> Path:
    """A copy of that, for a test to spoil."""
    return shutil.copytree(filled, tmp_path / "cache")


def test_what_one_process_compiled_the_next_only_loads(tiny: Path, filled: Path) -> None:
    output = finish(start(tiny, environment(NUMBA_CACHE_DIR=str(filled))))
    assert output.count("data saved") == 0
    assert output.count("data loaded") == 4
    assert "Warning" not in output
    assert "could compile" not in output  # which takes long to set up


def test_of_many_first_processes_one_compiles_and_the_others_wait(
    tiny: Path, tmp_path: Path
) -> None:
    env = environment(NUMBA_CACHE_DIR=str(tmp_path / "cache"))
    output = "".join([finish(process) for process in [start(tiny, env) for _ in range(4)]])
    assert output.count("data saved") == 4
    assert output.count("data loaded") == 12
    assert "Warning" not in output


@pytest.mark.matrix
def test_where_nothing_can_be_kept_everything_works_after_one_warning(tmp_path: Path) -> None:
    # No folder that Numba would use can be made, not even by root: a file stands in its place.
    package = tmp_path / "spotmpi"
    shutil.copytree(ROOT / "kernels", package / "kernels", ignore=shutil.ignore_patterns("__py*"))
    (package / "__init__.py").touch()  # or else an installed spotmpi would come first
    (package / "kernels" / "__pycache__").write_text("a file")
    file = tmp_path / "file"
    file.write_text("a file")
    script = tmp_path / "script.py"
    script.write_text(KERNELS)
    nowhere = str(file / "folder")
    env = environment(
        PYTHONPATH=str(tmp_path), HOME=nowhere, XDG_CACHE_HOME=nowhere, NUMBA_CACHE_DIR=nowhere
    )
    output = finish(start(script, env))
    assert output.count("RuntimeWarning") == 1
    assert "no locator available" in output
    assert "point NUMBA_CACHE_DIR at a folder that can be written" in output
    assert "saved" not in output


def test_a_cache_of_garbage_is_a_warning(tiny: Path, spoilt: Path) -> None:
    for code in spoilt.rglob("*.nbc"):
        code.write_bytes(code.read_bytes()[:100])
    output = finish(start(tiny, environment(NUMBA_CACHE_DIR=str(spoilt))))
    assert output.count("RuntimeWarning") == 2  # one for each dtype
    assert "empty it" in output


def test_a_cache_that_cannot_be_written_is_a_warning(tiny: Path, spoilt: Path) -> None:
    (lock,) = spoilt.rglob("spotmpi.lock")
    lock.unlink()
    lock.mkdir()
    output = finish(start(tiny, environment(NUMBA_CACHE_DIR=str(spoilt))))
    assert output.count("RuntimeWarning") == 2


def test_kernels_do_without_scipy_and_others_have_it() -> None:
    pytest.importorskip("scipy", reason="no SciPy: python -m pip install scipy")
    subprocess.run([sys.executable, "-c", DO_WITHOUT], check=True, timeout=TIMEOUT, cwd=ROOT)


def test_two_threads_may_load_at_a_time() -> None:
    context = cpu_target.target_context
    first, second = cache._without_compiler(), cache._without_compiler()
    first.__enter__()
    second.__enter__()
    assert "refresh" in vars(context)
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert "refresh" not in vars(context)
