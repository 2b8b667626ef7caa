"""Whose arrays a script trains: NumPy's, CuPy's, or the fake CuPy's, whose device is none."""

from __future__ import annotations

from typing import Any

import numpy as np

LIBRARIES = ("numpy", "fake", "cupy")

Tree = dict[str, Any]


class Library:
    """Ways to and from NumPy's arrays."""

    def __init__(self, name: str) -> None:
        self._cupy: Any = None
        if name == "fake":
            from tests import fake_cupy

            fake_cupy.install()
        if name != "numpy":
            import cupy

            self._cupy = cupy

    def put(self, tree: Tree) -> Tree:
        """From NumPy."""
        if self._cupy is None:
            return tree
        return {key: self._cupy.asarray(array) for key, array in tree.items()}

    def fetch(self, tree: Tree) -> dict[str, np.ndarray]:
        """To NumPy."""
        return tree if self._cupy is None else {key: array.get() for key, array in tree.items()}
