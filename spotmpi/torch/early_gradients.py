"""Gradients that go to the others while `backward` computes the next ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch

from spotmpi.errors import UsageError

__all__ = ["EarlyGradients"]


class EarlyGradients:
    """Gives each gradient of a step to the round as soon as `backward` has it. Local.

    ``params``: the parameters, by name.
    ``give``: brings the gradient of the parameter of this name to the round.
    """

    def __init__(
        self,
        params: Mapping[str, torch.nn.Parameter],
        give: Callable[[str], None],
    ) -> None:
        self._params = params
        self._give = give
        self._given: dict[str, tuple[torch.Tensor, int]] = {}
        """The gradients that were given for this step, by name, each with its version then."""
        self._held = False
        """True while the script computes a part of a batch, to which more is to come."""

    def __contains__(self, name: str) -> bool:
        return name in self._given

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Return a block in which gradients are given as they come."""
        hooks = [
            param.register_post_accumulate_grad_hook(partial(self._came, name))
            for name, param in self._params.items()
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Return a block in which gradients are only added up."""
        before, self._held = self._held, True
        try:
            yield
        finally:
            self._held = before

    def end(self) -> None:
        """Forget what was given, as the step is about to be taken. Raises UsageError if the script
        has changed any of it."""
        given, self._given = self._given, {}
        for name, (grad, version) in given.items():
            if self._params[name].grad is not grad or grad._version != version:
                raise UsageError(
                    f"the gradient of {name} was changed after backward(), and with overlap=True "
                    "it was given to the others by then: clip the average by the strategy "
                    "(spotmpi.operators.Clip), or leave overlap out"
                )

    def _came(self, name: str, param: torch.Tensor) -> None:
        if self._held:
            return
        if name in self._given:
            raise UsageError(
                f"backward() has computed the gradient of {name} again, and with overlap=True it "
                "was given to the others by then: call backward() once for each step, and for the "
                "parts of a batch, except for the last one, in `with opt.no_sync():`"
            )
        self._give(name)
        assert param.grad is not None
        self._given[name] = param.grad, param.grad._version
