"""What all kernels refuse, for any library of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

__all__ = ["check_pieces", "refuse"]

Kinds = Any
"""The library's class of arrays, or several classes."""


def refuse(arrays: Sequence[Any], kinds: Kinds, own: str) -> NoReturn:
    """Raise an error for arrays that are not flat, contiguous, of one length and one dtype.

    ``own``: the sentence about arrays of another library.
    """
    got = []
    for x in arrays:
        if not isinstance(x, kinds):
            raise TypeError(f"{own}; got {type(x).__name__}")
        got.append(f"{x.dtype}{list(x.shape)}{'' if x.flags.c_contiguous else ' not contiguous'}")
    kind = TypeError if len({x.dtype for x in arrays}) > 1 else ValueError
    raise kind(
        "kernels take one-dimensional contiguous arrays of one length and one dtype; got "
        + ", ".join(got)
    )


def check_pieces(flat: Any, tensors: Sequence[Any], kinds: Kinds, own: str) -> None:
    """Refuse tensors that are not ``flat`` in pieces: of its dtype, and of its size together."""
    size = 0
    for tensor in tensors:
        if not isinstance(tensor, kinds):
            raise TypeError(f"{own}; got {type(tensor).__name__}")
        if tensor.dtype != flat.dtype:
            raise TypeError(f"a tensor is {tensor.dtype}, the flat array {flat.dtype}")
        size += tensor.size
    if size != flat.size:
        raise ValueError(f"the tensors have {size} elements, the flat array {flat.size}")
