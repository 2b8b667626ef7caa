"""The parameters of known models in the order of their forward passes, and what a pass costs.

By formula, for what is trained: the convolutional ones as Keras builds them, BERT without a head
for a task. A layer's backward pass is taken to cost as its forward pass does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

__all__ = ["MODELS", "Array", "bert_base", "inception_v3", "resnet50", "vgg16"]

_CLASSES = 1000


class Array(NamedTuple):
    """Parameters of one layer."""

    shape: tuple[int, ...]
    work: float
    """Multiplications of that layer, if they are its main ones: for a picture, or for a word."""

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)


def resnet50() -> list[Array]:
    """He et al., 2015: 25,583,592 in 214 arrays, for pictures of 224 by 224."""
    found = [*_convolution(7, 7, 3, 64, 112, vectors=3)]
    channels, wider = 64, 4
    stages = ((64, 3, 56), (128, 4, 28), (256, 6, 14), (512, 3, 7))
    for inner, blocks, width in stages:
        for block in range(blocks):
            # Each kernel has a bias, and the normalisation behind it a scale and a shift.
            if block == 0:
                found += _convolution(1, 1, channels, wider * inner, width, vectors=3)
            found += _convolution(1, 1, channels, inner, width, vectors=3)
            found += _convolution(3, 3, inner, inner, width, vectors=3)
            found += _convolution(1, 1, inner, wider * inner, width, vectors=3)
            channels = wider * inner
    return [*found, *_dense(channels, _CLASSES)]


def vgg16() -> list[Array]:
    """Simonyan and Zisserman, 2014: 138,357,544 in 32 arrays, one of which has 102,760,448."""
    found: list[Array] = []
    channels = 3
    for made, layers, width in (
        (64, 2, 224),
        (128, 2, 112),
        (256, 3, 56),
        (512, 3, 28),
        (512, 3, 14),
    ):
        for _ in range(layers):
            found += _convolution(3, 3, channels, made, width, vectors=1)
            channels = made
    for given, made in ((7 * 7 * channels, 4096), (4096, 4096), (4096, _CLASSES)):
        found += _dense(given, made)
    return found


def inception_v3() -> list[Array]:
    """Szegedy et al., 2015: 23,817,352 in 190 arrays, for pictures of 299 by 299."""
    found: list[Array] = []

    def chain(given: int, width: int, *layers: tuple[int, int, int]) -> int:
        """Layers one behind the other, each its height, its width and its channels."""
        for height, across, made in layers:
            found.extend(_convolution(height, across, given, made, width, vectors=1))
            given = made
        return given

    chain(3, 149, (3, 3, 32))
    chain(32, 147, (3, 3, 32), (3, 3, 64))
    chain(64, 73, (1, 1, 80))
    channels = chain(80, 71, (3, 3, 192))
    for pooled in (32, 64, 64):
        channels = sum(
            (
                chain(channels, 35, (1, 1, 64)),
                chain(channels, 35, (1, 1, 48), (5, 5, 64)),
                chain(channels, 35, (1, 1, 64), (3, 3, 96), (3, 3, 96)),
                chain(channels, 35, (1, 1, pooled)),
            )
        )
    channels += chain(channels, 17, (3, 3, 384))
    channels += chain(chain(channels - 384, 35, (1, 1, 64), (3, 3, 96)), 17, (3, 3, 96))
    for inner in (128, 160, 160, 192):
        first, tall, flat = (1, 1, inner), (7, 1, inner), (1, 7, inner)
        channels = sum(
            (
                chain(channels, 17, (1, 1, 192)),
                chain(channels, 17, first, flat, (7, 1, 192)),
                chain(channels, 17, first, tall, flat, tall, (1, 7, 192)),
                chain(channels, 17, (1, 1, 192)),
            )
        )
    narrow = chain(channels, 17, (1, 1, 192))
    wide = chain(channels, 17, (1, 1, 192), (1, 7, 192), (7, 1, 192))
    channels += chain(narrow, 8, (3, 3, 320)) + chain(wide, 8, (3, 3, 192))
    for _ in range(2):
        both = ((1, 3, 384), (3, 1, 384))
        one = chain(channels, 8, (1, 1, 384))
        two = chain(channels, 8, (1, 1, 448), (3, 3, 384))
        channels = sum(
            (
                chain(channels, 8, (1, 1, 320)),
                *(chain(one, 8, layer) for layer in both),
                *(chain(two, 8, layer) for layer in both),
                chain(channels, 8, (1, 1, 192)),
            )
        )
    return [*found, *_dense(channels, _CLASSES)]


def bert_base() -> list[Array]:
    """Devlin et al., 2018, for small letters only: 109,482,240 in 199 arrays."""
    words, places, width, inner = 30_522, 512, 768, 3072
    found = [Array((rows, width), 0) for rows in (words, places, 2)]
    found += _normalisation(width)
    for _ in range(12):
        for _ in range(4):
            found += _dense(width, width)
        found += [*_normalisation(width), *_dense(width, inner), *_dense(inner, width)]
        found += _normalisation(width)
    return [*found, *_dense(width, width)]


MODELS: Mapping[str, Callable[[], list[Array]]] = {
    "resnet50": resnet50,
    "vgg16": vgg16,
    "inception-v3": inception_v3,
    "bert-base": bert_base,
}
"""By the names that options have for them."""


def _convolution(
    height: int, across: int, given: int, made: int, width: int, *, vectors: int
) -> Iterator[Array]:
    """Its kernel, and so many vectors for what it makes, in a picture that is so wide then."""
    yield Array((height, across, given, made), height * across * given * made * width**2)
    yield from (Array((made,), 0) for _ in range(vectors))


def _dense(given: int, made: int) -> Iterator[Array]:
    yield Array((given, made), given * made)
    yield Array((made,), 0)


def _normalisation(width: int) -> Iterator[Array]:
    yield from (Array((width,), 0) for _ in range(2))
