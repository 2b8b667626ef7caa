"""Calls of torch that are complete, or will be when they are waited for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from spotmpi.errors import PeersLost
from spotmpi.torch.collectives import Calls, like, lost

__all__ = ["Arrival", "Arrivals", "Call"]


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
        senders: Sequence[int],
        key: bytes,
        look: Callable[[Arrival, bool], None],
    ) -> None:
        """``look`` completes it if it has come; given True, it waits for that."""
        super().__init__([out], lambda: look(self, True))
        self.out, self.senders, self.key = out, senders, key
        self._look = look
        self.source = senders[0]
        """The rank that it has come from."""

    def is_completed(self) -> bool:
        """Return True if it has come."""
        if not super().is_completed():
            self._look(self, False)
        return super().is_completed()

    def _source_rank(self) -> int:
        """Return the rank that it has come from, as torch asks for it."""
        return self.source


class Arrivals:
    """The messages that a worker expects in one group, in the order in which it asks for them."""

    def __init__(self, calls: Callable[[], Calls]) -> None:
        self._calls = calls
        self._expected: list[Arrival] = []

    def expect(self, out: torch.Tensor, senders: Sequence[int], key: bytes) -> Arrival:
        """Return the next message of this key from one of these ranks, which is written into
        ``out`` when it is waited for. Local."""
        arrival = Arrival(out, senders, key, self._look)
        self._expected.append(arrival)
        return arrival

    def _look(self, wanted: Arrival, waits: bool) -> None:
        """Complete this one, and those before it that get messages first which it could get."""
        for one in [*self._expected]:
            rivals = one.key == wanted.key and not {*one.senders}.isdisjoint(wanted.senders)
            if rivals and not self._take(one, waits):
                return
            if one is wanted:
                return
        raise lost(wanted.source)  # which was raised before

    def _take(self, one: Arrival, waits: bool) -> bool:
        """Return True if it is complete. It is expected no more then, nor if its sender is lost."""
        try:
            found = self._calls().receive(one.senders, one.key, waits)
        except PeersLost:
            self._expected.remove(one)
            raise
        if found is None and not waits:
            return False
        self._expected.remove(one)
        if found is not None:
            one.source, there = found
            one.out.detach().copy_(like(one.out, there))
        one.end()
        return True
