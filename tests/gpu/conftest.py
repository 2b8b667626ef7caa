"""What needs a GPU: python -m pytest -m gpu. Whoever asks for it without one is told so."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All in this folder is left out unless it is asked for."""
    for item in items:
        if "tests/gpu/" in item.path.as_posix():
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session", autouse=True)
def _gpu() -> None:
    try:
        import cupy

        count = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:  # noqa: BLE001 -- whatever keeps it from working is what is to be said
        pytest.fail(f"no test of tests/gpu can run: CuPy finds no GPU ({error})", pytrace=False)
    assert count > 0
