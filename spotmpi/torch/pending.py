"""Calls of torch that are complete, or will be when they are waited for."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from spotmpi.errors import PeersLost, UsageError
from spotmpi.torch.collectives import Calls
from spotmpi.torch.tensors import like

__all__ = ["Arrival", "Arrivals", "Call", "Later", "operation_of"]


class Call(dist._Work):  # type: ignore[misc]  # torch has no types for it
    """A call that is complete, or will be when it is waited for."""

    def __init__(self, result: Any, complete: Callable[[], None] | None = None) -> None:
        """``result``: the tensors that it writes. ``complete``: completes the call; None: it is
        complete."""
        super().__init__()
        self._result = result
        self._complete = complete
        devices = {one.device for one in _tensors_of(result) if one.device.type != "cpu"}
        self._future: torch.futures.Future[Any] = torch.futures.Future(devices=[*devices])
        if complete is None:
            self.end()

    def end(self) -> None:
        """Note that it is complete."""
        self._future.set_result(self._result)

    def wait(self, timeout: Any = None) -> bool:
        """Return when it is complete. Torch's time limits do not apply: a loss ends no call."""
        if not self._future.done():
            assert self._complete is not None
            self._complete()
        if not self._future.done():
            raise RuntimeError("the backward pass that asked for this sum has failed")
        self._future.wait()  # so that this stream of a device comes after that of the sum
        return True

    def is_completed(self) -> bool:
        """Return True if it is complete."""
        return bool(self._future.done())

    def is_success(self) -> bool:
        """Return True if it is complete: a call that fails raises."""
        return self.is_completed()

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a future that is done when the call is complete."""
        return self._future

    def result(self) -> Any:
        """Return the tensors that are written."""
        return self._result


def _tensors_of(result: Any) -> list[torch.Tensor]:
    """Return the tensors of a call, which may be in lists."""
    if isinstance(result, torch.Tensor):
        return [result]
    return [one for some in result for one in _tensors_of(some)]


class Arrival(Call):
    """A message that is expected."""

    def __init__(
        self,
        out: torch.Tensor,
        sender: int | None,
        key: bytes,
        look: Callable[[Arrival, bool], None],
    ) -> None:
        """``sender``: its rank; None: any of the others. ``look`` completes it if it has come;
        given True, it waits for that."""
        super().__init__([out], lambda: look(self, True))
        self.out, self.sender, self.key = out, sender, key
        self._look = look
        self.source = sender or 0
        """The rank that it has come from."""
        self.error: Exception | None = None
        """Why it does not come."""

    def is_completed(self) -> bool:
        """Return True if it has come."""
        if not super().is_completed():
            self._look(self, False)
        return super().is_completed()

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a future that is done. Raises UsageError if the message has not come: nothing
        would complete the future."""
        if not self.is_completed():
            raise UsageError("call wait() on what irecv() returns: nothing else completes it")
        return super().get_future()

    def _source_rank(self) -> int:
        """Return the rank that it has come from, as torch asks for it."""
        return self.source


class Arrivals:
    """The messages that a worker expects in one group. What comes goes to the first one, in the
    order in which they were asked for, that takes messages of its key and its sender."""

    def __init__(self, calls: Callable[[], Calls]) -> None:
        self._calls = calls
        self._expected: list[Arrival] = []

    def expect(self, out: torch.Tensor, sender: int | None, key: bytes) -> Arrival:
        """Return the next message of this key from this rank, or from any if it is None, which is
        written into ``out`` when it is waited for. Local."""
        arrival = Arrival(out, sender, key, self.look)
        self._expected.append(arrival)
        return arrival

    def look(self, wanted: Arrival, waits: bool) -> None:
        """Give what comes to those that expect it, until this one has come or nothing is there."""
        while wanted in self._expected:
            try:
                found = self._calls().receive(wanted.sender, wanted.key, waits)
            except (PeersLost, UsageError) as error:
                self._fail(wanted, error)
                break
            if found is None:
                return
            self._give(*found, wanted.key)
        if wanted.error is not None:
            raise wanted.error

    def _give(self, source: int, there: Any, key: bytes) -> None:
        """Write a message to where it is expected; None: leave that as it is."""
        one = next(one for one in self._expected if one.key == key and one.sender in (None, source))
        one.source = source
        try:
            if there is not None:
                one.out.detach().copy_(like(one.out, there))
        except UsageError as error:
            self._fail(one, error)
        else:
            self._expected.remove(one)
            one.end()

    def _fail(self, one: Arrival, error: Exception) -> None:
        self._expected.remove(one)
        one.error = error


class Later(NamedTuple):
    """A sum that waits for the end of a backward pass."""

    operation: str
    tensors: Sequence[torch.Tensor]
    call: Call
    callback: weakref.ref[Callable[[], None]]
    """What the pass calls at its end."""


def operation_of(opts: Any) -> str:
    """Return the name of the operation of a call: torch gives a kind or an object with one."""
    asked = dist.ReduceOp.SUM if opts is None else opts.reduceOp
    for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"):
        if asked == getattr(dist.ReduceOp, name):  # `in` compares by other means
            return name
    raise UsageError(f"spotmpi has no operation {asked} for torch")
