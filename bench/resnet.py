"""The parameters of ResNet-50 in the order of its forward pass, and what a backward pass costs.

By formula (He et al., 2015, as Keras builds it): 25,583,592 trained parameters in 214 arrays, for
pictures of 224 by 224. A layer's backward pass is taken to cost as its forward pass does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["Array", "resnet50"]

_STAGES = ((64, 3, 56), (128, 4, 28), (256, 6, 14), (512, 3, 7))
"""Channels inside of a block, blocks, and how many pixels wide a picture is by then."""
_WIDER = 4
"""So many times the channels leave a block."""
_CLASSES = 1000


class Array(NamedTuple):
    """Parameters of one layer."""

    shape: tuple[int, ...]
    work: float
    """Multiplications of that layer, if they are its main ones."""

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)


def resnet50() -> list[Array]:
    """All of them."""
    found = [*_convolution(7, 3, 64, 112)]
    channels = 64
    for inner, blocks, width in _STAGES:
        for block in range(blocks):
            if block == 0:
                found += _convolution(1, channels, _WIDER * inner, width)
            found += _convolution(1, channels, inner, width)
            found += _convolution(3, inner, inner, width)
            found += _convolution(1, inner, _WIDER * inner, width)
            channels = _WIDER * inner
    work = channels * _CLASSES
    return [*found, Array((channels, _CLASSES), work), Array((_CLASSES,), 0)]


def _convolution(kernel: int, given: int, made: int, width: int) -> Iterator[Array]:
    """Its kernel and bias, and the scale and shift of the normalisation behind it."""
    work = kernel**2 * given * made * width**2
    yield Array((kernel, kernel, given, made), work)
    yield from (Array((made,), 0) for _ in range(3))
