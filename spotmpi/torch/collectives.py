"""What torch scripts ask of all workers, in rounds of spotmpi. Ranks are those of the start."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from spotmpi.errors import Left, PeersLost, UsageError
from spotmpi.protocol.plain_values import pack, unpack
from spotmpi.rounds.once import answer_of, outcome_of
from spotmpi.rounds.summand import Summand
from spotmpi.torch.belongings import Belongings
from spotmpi.torch.dealing import Place
from spotmpi.torch.kept_script import KeptScript
from spotmpi.torch.passes import Passes
from spotmpi.torch.standing import Standing
from spotmpi.torch.tensors import array_of, bytes_of, from_bytes, stream_of, tensor_of
from spotmpi.training.group import Group
from spotmpi.training.model import OwnModel
from spotmpi.training.participant import turned_away
from spotmpi.training.script.answers import NoAnswers

__all__ = ["NO_PASS", "Collectives", "Rounds", "lost", "values_of"]

NO_PASS = (
    "it can only join where a pass through a DataLoader with DistributedSampler or ElasticSampler "
    "begins, and the others' script had come to none"
)
"""Why a newcomer is turned away."""

_FOLDS: Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "SUM": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}


class Rounds(Group[Any]):
    """The rounds of all workers, as tensors need them. A context manager."""

    def __init__(self, belongings: Belongings | None = None) -> None:
        """``belongings``: what checkpoints keep and newcomers get; None: all that the script trains
        with."""
        super().__init__([np.zeros(1, np.float32)])
        self.standing = Standing()
        """What newcomers are told."""
        self.script = KeptScript(belongings or Belongings())
        """What checkpoints keep."""
        self._training.registry.keep("torch", self.standing)
        self._training.registry.keep("torch script", self.script)
        self._training.position.answers = NoAnswers()
        self._own = self._training.model.own = OwnModel()
        self._rested = 0
        """Steps that were taken when the script was at rest last."""

    def __enter__(self) -> Rounds:
        super().__enter__()
        self._rested = self.steps
        self._own.at_rest = not self.keeps or self.script.found is not None
        return self

    @property
    def keeps(self) -> bool:
        """True if the job keeps checkpoints."""
        return self._connected("keeps", alone=True).context.settings.checkpoint is not None

    def rest(self) -> None:
        """Keep what the script trains with if that is due, and stop if all are to: the script is
        between two steps. Collective if so, which is alike on all. Raises Stopped."""
        participant, steps = self._connected("rest()", alone=True), self.steps
        every = participant.context.settings.checkpoint_every
        due = every is not None and steps // every > self._rested // every
        if not (due or participant.stopping):
            return
        self._rested = steps
        self._own.at_rest = True
        try:
            self.mean(0.0)
        finally:
            self._own.at_rest = False

    def arrive(self) -> Place | None:
        """Note that a resumed script is where its checkpoint was written. Returns its place in the
        pass that it begins, if not at its beginning."""
        self._own.at_rest = not self.keeps
        return self.script.arrive()

    @property
    def joins(self) -> bool:
        """True if this worker is a newcomer that has yet to learn."""
        return self.worker not in self.workers

    @property
    def taught(self) -> bool:
        """True if a newcomer learnt with the last call, or was to learn. Alike on all."""
        return self._connected("taught", alone=True).taught

    def let_in(self) -> None:
        """Have those learn that come. Collective; on a newcomer it returns when it has learnt what
        workers know of each other. Raises Left if it cannot."""
        self.average(self.state)
        self._rested = self.steps  # also on a newcomer, which must rest when the others do

    def trains(self) -> None:
        """Tell the launcher that this newcomer trains from now on."""
        self._connected("trains()", alone=True).context.channel.tell("trains", step=self.steps)

    def turned_away(self, why: str) -> Left:
        """Return what is raised on a newcomer that cannot take part, and tell the launcher."""
        channel = self._connected("turned_away()", alone=True).context.channel
        return turned_away(channel, self.worker, why)

    def from_one_of_all(self, work: Callable[[], bytes]) -> bytes:
        """Return what ``work`` returns on one worker, which the others wait for. If that is lost,
        another one does it."""

        def outcome() -> bytes:
            return outcome_of(work, f"what worker {self.worker} was to give to newcomers")

        said: bytes = answer_of(self._run(self._connected("once()").once(outcome)))
        return said

    def add_up(
        self, tensors: Sequence[torch.Tensor], kind: torch.dtype, times: int, step: bool
    ) -> tuple[int, ...]:
        """Write the mean of all workers' tensors into these, ``times`` this number. They are on one
        device. ``kind``: the type in which they are summed. ``step``: this stands for a step of the
        training. Returns the workers that brought something."""
        step = step and self.script.found is None
        with stream_of(tensors[0].device):
            mine = Summand.of([array_of(one.detach().to(kind)) for one in tensors])
            total, workers = self._run(self._connected("sum()").sum(mine, step))
            for one, there in zip(tensors, mine.result(total), strict=True):
                found = tensor_of(there)
                if times != len(workers):  # by no quotient, so that whole numbers stay whole
                    found = (found * times).div_(len(workers))
                one.detach().copy_(found)
        return workers

    def exchange(self, value: Any) -> bytes:
        """Return each worker's value, by worker, as `values_of` reads it. It is asked for in each
        run of a script, also in one that is resumed."""
        said: bytes = self._run(self._connected("gather()").gather(pack(value)))
        return said


def values_of(said: bytes) -> dict[int, Any]:
    """Return the values that workers have exchanged, by worker."""
    return {worker: unpack(one) for worker, one in unpack(said).items()}


class Collectives:
    """Sums and exchanges of tensors among all workers that live. Collective, unless marked local.

    Workers that are lost during a call have a part in its result on all others or on none.
    """

    def __init__(self, group: Rounds, size: int) -> None:
        """``group``: it has begun. ``size``: workers at the start, which a newcomer is told."""
        self.group = group
        self.standing = standing = group.standing
        self.rehearses = group.joins
        """True if this worker is a newcomer: its calls are answered without the others."""
        if self.rehearses:
            self.rank, self.share = standing.place_for(group.worker)
        else:
            standing.begin(size)
            self.rank = self.share = standing.ranks[group.worker]
        if group.script.found is not None:
            standing.trained[:] = group.script.found.trained
        self.look_anew()

    @property
    def passes(self) -> Passes:
        """Those through data that are under way."""
        return self.group.script.passes

    def look_anew(self) -> None:
        """Note passes from here on: this worker is where the others are."""
        self.group.script.passes = Passes(self.standing.trained)

    @property
    def size(self) -> int:
        """Number of workers at the start."""
        return self.standing.size

    @property
    def alive(self) -> tuple[int, ...]:
        """Ranks of the workers that live (see `Standing.alive`), and of this one."""
        there = self.standing.alive
        return tuple(sorted({*there, self.rank})) if self.rehearses else there

    def end(self, error: BaseException | None) -> None:
        """Leave together with all others, unless this worker has left them already. ``error``: what
        has ended the script; then the others are not waited for."""
        if self.group._inside:
            if error is None and self.stranded:
                error = self.group.turned_away("its script ended before it came to the others")
            self.group.__exit__(type(error) if error else None, error, None)

    @property
    def stranded(self) -> bool:
        """True if the others wait for this newcomer, which is not where they are."""
        return self.rehearses and not self.group.joins

    def meet(self) -> None:
        """Return when all have called it."""
        self.exchange(None)

    def exchange(self, value: Any, asked: str = "all") -> dict[int, Any]:
        """Return the values of all who have a part in this call, by rank. ``asked``: what for, in
        short."""
        answers = self.standing.answers
        if not self.rehearses:
            said = self.group.exchange(value)
            answers.keep(asked, said)
        elif answers.used_up and not self.standing.trained:
            raise self.group.turned_away(NO_PASS)
        elif (known := answers.recall(asked)) is None:
            return dict.fromkeys(range(self.size), value)
        else:
            said = known
        found, ranks = values_of(said), self.standing.ranks
        if not self.rehearses:
            self.standing.heard(found)
        return {ranks[worker]: one for worker, one in found.items()}

    def sum_up(self) -> None:
        """Note that gradients were summed."""
        self.passes.sum_up(self.alive, self.standing.taken)
        self.standing.answers.sums += 1

    def reduce(self, tensors: Sequence[torch.Tensor], operation: str, step: bool = False) -> None:
        """Write into each tensor the sum of all workers' tensors, or what the operation says.
        ``step``: these are gradients, and their sum stands for a step.

        A sum of floats counts as if all workers of the start were there: it is multiplied by their
        number and divided by the number of those that brought something. So a script that divides
        by the group's size, as DDP does, has the mean. Sums of whole numbers are what they are, and
        their average is cut off behind the point.
        """
        floats = [one for one in tensors if one.is_floating_point() and one.numel()]
        if operation in ("SUM", "AVG"):
            for how in dict.fromkeys(map(_summed_as, floats)):
                alike = [one for one in floats if _summed_as(one) == how]
                times = 1 if operation == "AVG" else self.size
                if self.rehearses:
                    for one in alike:
                        one.detach().mul_(times)
                else:
                    self.standing.heard(self.group.add_up(alike, how[0], times, step))
                    step = False  # it is counted
        elif operation not in _FOLDS:
            raise UsageError(f"spotmpi has no operation {operation} for tensors")
        for one in tensors:
            if operation in ("SUM", "AVG") and one.is_floating_point():
                continue
            found = self._values(one).values()
            total = functools.reduce(_FOLDS["SUM" if operation == "AVG" else operation], found)
            if operation == "AVG":
                total = total.div(len(found), rounding_mode="trunc")
            one.detach().copy_(total)

    def broadcast(
        self, tensors: Sequence[torch.Tensor], source: int, stands_in: bool = False
    ) -> None:
        """Write the tensors of the worker of this rank on all. Raises PeersLost if it is lost.
        ``stands_in``: see `from_one`."""
        asked = f"{sum(one.nbytes for one in tensors)} bytes"
        found, _ = self.from_one(source, lambda: [*map(bytes_of, tensors)], stands_in, asked)
        for one, there in zip(tensors, found, strict=True):
            one.detach().copy_(_like(one, there))

    def from_one(
        self,
        source: int,
        value: Callable[[], Any],
        stands_in: bool = False,
        asked: str = "a value",
    ) -> tuple[Any, int]:
        """Return on all what ``value`` returns on the worker of this rank, and that rank. Raises
        PeersLost if it is lost. ``stands_in``: if rank 0 is lost, the first worker that lives takes
        its place. ``asked``: what for, in short."""
        if not 0 <= source < self.size:
            raise UsageError(f"there is no rank {source} among {self.size} workers")
        stands_in = stands_in and source == 0
        if self.rehearses:
            found = self.exchange(None, f"{asked} from {source}")
            return (value() if found.get(source) is None else found[source]), source
        found = {}
        while source not in found:
            if source not in self.alive:
                if not stands_in:
                    raise lost(source)
                source = self.alive[0]
            mine = value() if self.rank == source else None
            found = self.exchange(mine, f"{asked} from {source}")
        return found[source], source

    def gather(self, mine: torch.Tensor) -> list[torch.Tensor]:
        """Return each worker's tensor, by rank. A worker that lives stands in for one that is lost:
        the next one, alike on all."""
        return self.filled(self._values(mine))

    def gather_lists(self, mine: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
        """Return each worker's tensors, by rank, likewise. They may be of other sizes on each."""
        found = self.exchange([(bytes_of(one), list(one.shape)) for one in mine])
        return self.filled(
            {
                rank: [from_bytes(there, mine[0].dtype, shape) for there, shape in some]
                for rank, some in found.items()
            }
        )

    def _values(self, mine: torch.Tensor) -> dict[int, torch.Tensor]:
        found = self.exchange(bytes_of(mine))
        return {rank: _like(mine, there) for rank, there in found.items()}

    def filled(self, found: Mapping[int, Any]) -> list[Any]:
        """Return these values by rank: of one that is lost, that of the next rank which is not."""
        ranks = sorted(found)
        return [
            found[next((one for one in ranks if one >= rank), ranks[0])]
            for rank in range(self.size)
        ]


def lost(rank: int) -> PeersLost:
    """Return what is raised where a lost worker was to say something."""
    return PeersLost(
        f"rank {rank}, which was to give something to all, is lost: ask "
        "spotmpi.torch.workers() who lives"
    )


def _summed_as(tensor: torch.Tensor) -> tuple[torch.dtype, torch.device]:
    """Return the type in which a tensor of floats is summed, and where."""
    return torch.promote_types(tensor.dtype, torch.float32), tensor.device


def _like(tensor: torch.Tensor, there: Any) -> torch.Tensor:
    """Return bytes as a tensor like this one, in memory of the host. Raises UsageError."""
    if there.nbytes != tensor.numel() * tensor.element_size():
        raise UsageError(
            f"a worker gave {there.nbytes} bytes where this one has a tensor of {tensor.dtype} "
            f"{tuple(tensor.shape)}: give tensors of one type and shape on all workers"
        )
    return from_bytes(there, tensor.dtype, tensor.shape)
