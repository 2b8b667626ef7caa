"""What torch.compile does not look into. Imports no torch: `import torch` calls what is here."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import FunctionType
from typing import Any

__all__ = ["leave_uncompiled", "leave_uncompiled_all"]


def leave_uncompiled(function: Any) -> None:
    """Let torch.compile run this function, and all that it calls, as it stands. Local.

    `torch.compiler.disable` does the same, but imports the compiler, which takes seconds.
    """
    eval_frame: Any = sys.modules["torch"]._C._dynamo.eval_frame
    skip = eval_frame._FrameAction.SKIP
    # The compiler skips it where C++ calls it, or code that is not compiled.
    strategy = eval_frame._FrameExecStrategy(skip, skip)
    eval_frame.set_code_exec_strategy(function.__code__, strategy)
    # Where code that is compiled calls it, the compiler looks for this attribute.
    vars(function)["_torchdynamo_disable"] = True


def leave_uncompiled_all(kinds: Iterable[type]) -> None:
    """Do the same with all methods and properties of these classes. Local."""
    for kind in kinds:
        for one in vars(kind).values():
            method = one.fget if isinstance(one, property) else one
            if isinstance(method, FunctionType):
                leave_uncompiled(method)
