"""What has been seen of a training that runs, look by look. Pure."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Mapping, Sequence

from spotmpi.economy.following.nodes import Stay

__all__ = ["Watched"]

_LATELY_S = 300.0
"""The speed is that of so long, or of ..."""
_LATELY = 50
"""... so many looks, if these take longer."""
_FEWEST_STEPS = 10
"""Before nobody knows the speed."""
_LOSSES = 20
"""Single losses are noisy: the mean of so many counts."""
_WARM_UP = 5
"""Steps that do not count for the speed when the hosts have changed."""


class Watched:
    """One training. A batch is that of one worker: a step of n workers is n batches."""

    def __init__(self) -> None:
        self.elapsed_s = 0.0
        self.steps = 0
        self.batches = 0.0
        self.stays: list[Stay] = []
        self._there: dict[str, Stay] = {}
        self._hosts: dict[str, int] = {}
        self._steps_at, self._batches_at, self._losses = array("q"), array("d"), array("d")
        """Of each look that saw a loss: steps and batches before it."""
        self._window: deque[tuple[float, float, int]] = deque()
        self._counts_from = 0

    @property
    def hosts(self) -> Mapping[str, int]:
        """The workers that train on each host."""
        return self._hosts

    def begin(self, steps: int) -> None:
        """The training begins, or goes on, with this step."""
        keep = next((i for i, at in enumerate(self._steps_at) if at >= steps), len(self._steps_at))
        for one in (self._steps_at, self._batches_at, self._losses):
            del one[keep:]
        if steps < self.steps or not self.batches:
            workers = max(1, sum(self._hosts.values()))
            last = self._steps_at[-1] if keep else 0
            self.batches = (self._batches_at[-1] if keep else 0.0) + (steps - last) * workers
        self.steps = steps
        self._moved()

    def pass_time(self, elapsed_s: float) -> None:
        """It is so late."""
        self.elapsed_s = max(self.elapsed_s, elapsed_s)

    def meet(self, hosts: Mapping[str, int]) -> None:
        """These train now."""
        if dict(hosts) == self._hosts:
            return
        for host in self._there.keys() - hosts.keys():
            self._there.pop(host).until_s = self.elapsed_s
        for host in [host for host in hosts if host not in self._there]:
            self._there[host] = Stay(host, self.elapsed_s)
            self.stays.append(self._there[host])
        self._hosts = dict(hosts)
        self._moved()

    def left_before(self, host: str, until_s: float) -> None:
        """A host was there from the beginning, and went before anybody looked."""
        self.stays.append(Stay(host, 0.0, until_s))

    def step(self, steps: int, loss: float | None) -> None:
        """So many steps are done, the last of them with this loss."""
        if loss is not None:
            self._steps_at.append(max(0, steps - 1))
            self._batches_at.append(self.batches)
            self._losses.append(loss)
        self.batches += max(0, steps - self.steps) * sum(self._hosts.values())
        self.steps = steps
        if self.steps >= self._counts_from:
            self._window.append((self.elapsed_s, self.batches, steps))
        while len(self._window) > _LATELY and self._window[0][0] < self.elapsed_s - _LATELY_S:
            self._window.popleft()

    def _moved(self) -> None:
        self._window.clear()
        self._counts_from = self.steps + _WARM_UP

    @property
    def speed(self) -> float | None:
        """Batches a second, lately, with whatever stood still; None: too few steps to know."""
        if len(self._window) < 2:
            return None
        (begin, before, first), (end, after, last) = self._window[0], self._window[-1]
        if last - first < _FEWEST_STEPS or end <= begin:
            return None
        return (after - before) / (end - begin)

    @property
    def loss(self) -> float | None:
        """The mean of the last ones; None: nobody has told any."""
        last = self._losses[-_LOSSES:]
        return sum(last) / len(last) if last else None

    @property
    def losses(self) -> tuple[Sequence[float], Sequence[float]]:
        """Batches before, and the loss."""
        return self._batches_at, self._losses
