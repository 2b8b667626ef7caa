"""The rounds of all workers, as torch scripts need them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from spotmpi.arrays.flat_parts import pieces
from spotmpi.errors import Left, Strayed
from spotmpi.fabric import Message, Steps
from spotmpi.protocol.membership import WorkerId
from spotmpi.protocol.plain_values import pack, unpack
from spotmpi.rounds.early_sum import EarlySum
from spotmpi.rounds.once import answer_of, outcome_of
from spotmpi.rounds.round import Summed
from spotmpi.rounds.subset_calls import Combine, Parts
from spotmpi.rounds.summand import GrowingSummand, OwnWords, Summand, Words
from spotmpi.torch.belongings import Belongings
from spotmpi.torch.dealing import Place
from spotmpi.torch.kept_script import KeptScript
from spotmpi.torch.standing import Standing
from spotmpi.torch.tensors import MeanOf, Numbers, array_of, stream_of, tensor_of
from spotmpi.training.group import Group
from spotmpi.training.participant import Participant, turned_away
from spotmpi.training.script.answers import NoAnswers

__all__ = ["Rounds", "values_of"]

T = TypeVar("T")

_MOST_KNOWN = 16
"""Most sums whose arrays' layout is kept."""


class Rounds(Group[Any]):
    """The rounds of all workers, as tensors need them. A context manager."""

    def __init__(
        self, belongings: Belongings | None = None, end_process: Callable[[], None] = lambda: None
    ) -> None:
        """``belongings``: what checkpoints keep and newcomers get; None: all that the script trains
        with. ``end_process``: is called if this worker has joined lately and its script has made
        another call than the others': they wait until its process has ended."""
        super().__init__([np.zeros(1, np.float32)])
        self._end_process = end_process
        self.standing = Standing()
        """What newcomers are told."""
        self.script = KeptScript(belongings or Belongings())
        """What checkpoints keep."""
        self._training.registry.keep("torch", self.standing)
        self._training.registry.keep("torch script", self.script)
        self._training.position.answers = NoAnswers()
        self._training.model.own = self.script
        self._known: dict[Hashable, Summand] = {}
        """Earlier sums without their arrays: how these lie in the flat array."""
        self._early: EarlySum | None = None
        """The sum whose first parts are under way."""
        self._rested = 0
        """Steps that were taken when the script was at rest last."""

    def __enter__(self) -> Rounds:
        super().__enter__()
        self._rested = self.steps
        self.script.at_rest = not self.keeps or self.script.found is not None
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
        self.script.at_rest = True
        try:
            self.mean(0.0)
        finally:
            self.script.at_rest = False

    def arrive(self) -> Place | None:
        """Note that a resumed script is where its checkpoint was written. Returns its place in the
        pass that it begins, if not at its beginning."""
        self.script.at_rest = not self.keeps
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
        # As if this step were to come: a checkpoint that is due with it is kept at the next rest.
        # Also on a newcomer, which must rest when the others do.
        self._rested = self.steps - 1

    def trains(self) -> None:
        """Tell the launcher that this newcomer trains from now on."""
        self._connected("trains()", alone=True).context.channel.tell("trains", step=self.steps)

    @property
    def strays(self) -> int:
        """Calls so far in which newcomers were to leave, as their scripts had come to another one.
        Alike on all."""
        return self._training.position.strays

    @property
    def recent(self) -> bool:
        """True if this worker joined lately: it leaves, and the others go on, if its script makes
        another call than theirs."""
        return self._training.position.recent

    @recent.setter
    def recent(self, recent: bool) -> None:
        self._training.position.recent = recent

    def _give_up(self, participant: Participant, error: BaseException) -> None:
        self._early = None  # the others get no word of it
        super()._give_up(participant, error)

    def _run(self, steps: Steps[T]) -> T:
        """Perform ``steps``. A sum that is under way is given up: the script asks for something
        else."""
        self.end_early(None, None)
        return self._perform(steps)

    def _perform(self, steps: Steps[T]) -> T:
        try:
            return super()._run(steps)
        except Strayed:
            self._end_process()
            raise

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

    def bytes_of_one(
        self, size: int, about: str, write: Callable[[Any], None] | None
    ) -> tuple[Any, tuple[int, ...]]:
        """Return as many bytes that one worker has, as an array that stays until the next call, and
        the workers that had a part in it: it is rubbish if that one had none. ``about``: says what
        they are, alike on all. ``write``: writes them into an array; None on the other workers."""
        (words,), workers = self._run(self._connected("sum()").sum(Words(size, about, write)))
        return words.view(np.uint8)[:size], workers

    def bytes_of_all(self, mine: Numbers, about: str) -> dict[WorkerId, Numbers]:
        """Return as many bytes of each worker, by worker, as arrays that stay until the next call.
        ``mine``: this one's. ``about``: says what they are, alike on all."""

        def write(room: Numbers) -> None:
            room[:] = mine

        words = OwnWords(mine.nbytes, about, write)
        found, workers = self._run(self._connected("sum()").sum(words))
        there = (one.view(np.uint8)[: words.bytes] for one in found)
        return dict(zip(workers, there, strict=True))

    def add_up(self, mean: MeanOf) -> tuple[int, ...]:
        """Write this mean where it says. Return the workers that brought something."""
        tensors, kind, times, step, out, start = mean
        step = step and self.script.found is None  # what is rehearsed was counted before
        with stream_of(tensors[0].device):
            arrays = [array_of(one.detach().to(kind)) for one in tensors]
            shapes = [one.shape for one in tensors]
            known = self._known_as((kind, tensors[0].device, *shapes), lambda: arrays)
            mine = known._replace(tree=arrays)
            found = self._run(self._connected("sum()").sum(mine, step))
            _write(out, found, times, start)
        return found.workers

    def begin_early(self, sizes: Sequence[int], kind: torch.dtype, step: bool) -> None:
        """Begin such a sum of tensors in memory of the host, each of one dimension, of these
        ``sizes``, which `give_early` takes one by one. Does not wait for the others."""
        shapes = [torch.Size([size]) for size in sizes]
        whole = self._known_as(
            (kind, torch.device("cpu"), *shapes),
            lambda: [array_of(torch.empty(shape, dtype=kind)) for shape in shapes],
        )
        mine = GrowingSummand(whole)
        step = step and self.script.found is None
        self._early = self._run(self._connected("sum()").begin_sum(mine, step))

    @property
    def early(self) -> int | None:
        """How many tensors a sum has been given so far whose first parts may travel; None: no sum
        is under way."""
        return None if self._early is None else len(self._early.mine)

    def give_early(self, tensor: torch.Tensor, kind: torch.dtype) -> None:
        """Give the sum that is under way its next tensor, which stays as it is until the sum is
        ended. Waits for the others once."""
        assert self._early is not None
        self._perform(self._early.add(array_of(tensor.detach().to(kind))))

    def end_early(
        self, tensors: Sequence[torch.Tensor] | None, times: int | None
    ) -> tuple[int, ...] | None:
        """End the sum that is under way as `add_up` does, with all its tensors. None: it is given
        up, if there is one, on all workers alike. Returns None if it is."""
        early, self._early = self._early, None
        if early is None:
            return None
        found = self._perform(early.end(tensors is not None))
        if found is None or tensors is None:
            return None
        _write(tensors, found, times)
        return found.workers

    def _known_as(self, known_by: Hashable, tree: Callable[[], Any]) -> Summand:
        """Return what arrays like those of ``tree`` bring, without arrays. ``known_by``: says their
        type, place and shapes, which a script mostly sums again."""
        known = self._known.get(known_by)
        if known is None:
            if len(self._known) == _MOST_KNOWN:
                self._known.clear()
            known = self._known[known_by] = Summand.of(tree())._replace(tree=None)
        return known

    @property
    def number(self) -> int:
        """How many trainings this process has begun before this one. Alike on all."""
        return self._connected("number", alone=True).context.history.number

    def post(self, to: WorkerId, key: bytes, content: Any) -> None:
        """Send bytes to another worker; ``key``: says what for. Local, and does not wait."""
        self._run(self._connected("post()").mail.post(to, key, content))

    def receive(self, senders: Collection[WorkerId], key: bytes, waits: bool) -> Message | None:
        """Return the next message of this key from one of these workers; None if none has come and
        this call does not wait. Raises PeersLost if one of them is lost."""
        mail = self._connected("receive()").mail
        there: Message | None = self._run(mail.receive(senders, key, waits))
        return there

    def ask_some(
        self, key: bytes, workers: Sequence[WorkerId], mine: Parts, combine: Combine
    ) -> Parts:
        """Return what ``combine`` makes of what these workers bring; ``mine``: this one's.
        Collective among them: each call of this ``key`` is, in the same order."""
        answer = self._connected("ask_some()").mail.ask_some(key, workers, mine, combine)
        said: Parts = self._run(answer)
        return said

    def exchange(self, value: Any, about: str = "") -> bytes:
        """Return each worker's value, by worker, as `values_of` reads it. It is asked for in each
        run of a script, also in one that is resumed. ``about``: says what for, alike on all."""
        mine = b"" if value is None else pack(value)  # if nobody has any, one round will do
        said: bytes = self._run(self._connected("gather()").gather(mine, about))
        return said


def values_of(said: bytes) -> dict[int, Any]:
    """Return the values that workers have exchanged, by worker."""
    return {worker: unpack(one) if one else None for worker, one in unpack(said).items()}


def _write(
    tensors: Sequence[torch.Tensor], found: Summed, times: int | None, start: int = 0
) -> None:
    """Write a sum into these tensors, from this number of it on, as ``times`` the mean; None: as it
    is."""
    many = len(found.workers)
    for one in tensors:
        out = one.detach().contiguous()  # its own memory, or a copy
        for where, there in pieces(found.total, start, start + one.numel()):
            total = tensor_of(there)
            if times is not None and times != many:  # by no quotient: whole numbers stay whole
                total = (total * times).div_(many)
            out.view(-1)[where].copy_(total)
        if not one.is_contiguous():
            one.detach().copy_(out)
        start += one.numel()
