"""How a torch script comes to where others are, or where it was before the job was resumed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from spotmpi.errors import PeersLost, UsageError
from spotmpi.protocol.plain_values import pack, unpack
from spotmpi.torch.belongings import Expected
from spotmpi.torch.collectives import NO_PASS, Collectives
from spotmpi.torch.dealing import Place, Samples
from spotmpi.torch.loaders import Dealt, Orders
from spotmpi.torch.passes import Pass, Passes, Rhythm
from spotmpi.torch.tensors import Numbers, write_bytes
from spotmpi.torch.torch_rounds import values_of

__all__ = ["Entrance"]

_UNSEEN = (
    "--checkpoint needs to see how far the script is, in one pass at a time through a DataLoader "
    "with DistributedSampler or ElasticSampler, or one of Accelerate, and gradients were summed "
    "{}: change that, or run it without --checkpoint and let it keep its own"
)
"""Why a script is refused with --checkpoint; it names where gradients were summed."""

_MOST_STRAYS = 1
"""After more of them newcomers come only where a pass begins."""
_OF_SOME = "its script sums gradients in a group of some workers, whose model others may not have"
_PAST = (
    "its script has gone through the pass that the others are in, and could not wait for them there"
)
_STRAYS = (
    "it has come to another pass than the others: its script has not gone through the same passes "
    "as theirs"
)
"""Why a newcomer is turned away."""


class _Told(NamedTuple):
    """What newcomers are told, beside numbers."""

    problem: str | None = None
    """Why nothing can be given."""
    described: bytes = b""
    """What the others train with (`Belongings.described`)."""
    size: int = 0
    """Bytes of its numbers."""
    left: int | None = None
    """Bytes of the samples that nobody has used in this pass, which follow; None: none do."""
    orders: Sequence[tuple[int, bytes]] = ()
    """The orders of samples (`Orders.told`)."""
    place: tuple[int, int, bool] = (0, 1, False)
    """The place in this pass, without samples."""
    moved: tuple[bool, bool] = (False, False)
    """True if an optimizer has used the last gradients, and if one has used any."""
    rhythm: tuple[int, int | None] = (0, None)
    """The batches of this pass so far, and `Rhythm.origin`."""
    sums: int = 0
    """Sums of gradients so far."""


class Entrance:
    """Where a pass through dealt samples begins, or an optimizer has stepped in it: there newcomers
    come in, and a resumed script goes on.

    A newcomer runs its script from the beginning, without the others: its calls are answered as
    theirs were, or with its own values. It goes through each pass that they have begun with a batch
    or two, so that torch has made what it makes in its first steps. In the last of these passes it
    waits for them, or where the next one begins, and gets their modules, optimizers, schedulers and
    scalers. A resumed script does the same on all workers together, with the model of the
    checkpoint.
    """

    def __init__(self, calls: Collectives) -> None:
        self.calls = calls
        self._script = calls.group.script
        self._belongings = self._script.belongings
        self._place: Place | None = None
        """Where this script goes on in the pass that it begins now; None: at its beginning."""
        self._moved = False
        """True if an optimizer has used the gradients that were summed last."""
        self._moves = False
        """True if one has used any."""
        self._sums = 0
        """Sums of gradients that a newcomer had made when it began its last pass."""
        self._held: set[int] = set()
        """Newcomers that train now with a batch that they have rehearsed with."""
        self._rhythm = Rhythm()
        """That of the present pass."""
        self._first_whole: int | None = None
        """The first pass that this worker goes through as a whole, if it joined lately."""
        self._moves_back = False
        """True if a resumed script is not to keep its next step, with which a pass ends."""
        self._uneven = False
        """True within `join`, from the first question on who has data."""

    @property
    def passes(self) -> Passes:
        """Where passes are noted."""
        return self.calls.passes

    @property
    def orders(self) -> Orders:
        """The orders of samples."""
        return self._script.orders

    @property
    def size(self) -> int:
        """The number of workers at the start."""
        return self.calls.size

    @property
    def place(self) -> tuple[int, int]:
        """This worker's rank, and its share of samples that are dealt to as many as `size`."""
        return self.calls.rank, self.calls.share

    @property
    def rehearses(self) -> bool:
        """True if this script goes through what others, or this job before it was resumed, have
        done: it is not where they are, or were."""
        return self.calls.rehearses or self._script.found is not None

    def begins_pass(self, dealt: Dealt) -> bool:
        """Let newcomers in, before all begin a pass. Return False if this worker only rehearses
        it. Collective, but on a newcomer that rehearses."""
        trains = self._comes_to_pass(dealt)
        if trains:  # in the first pass a newcomer rehearses with some batches
            self._rhythm = Rhythm(origin=0 if self.calls.standing.answers.over else None)
        return trains

    def _comes_to_pass(self, dealt: Dealt) -> bool:
        calls = self.calls
        if self._script.found is not None:
            self._script.take()
            if self.passes.rehearsed < len(self._script.found.trained):
                return False
            self._place = calls.group.arrive()
            if self._place is not None:
                return True  # newcomers would begin it at its beginning: they come later
        if self._uneven and not calls.rehearses:
            return True
        if not calls.rehearses:
            if calls.group.keeps and not calls.standing.trained:
                self._belongings.look()  # that nothing can be kept is said now, and on all
            self.rest()
            if calls.group.taught:
                self._let_in(within=False)
                self._admit(self.passes.with_one(dealt.way))
            return True
        if self._waits(self.passes.rehearsed):
            if calls.standing.within:
                raise calls.group.turned_away(_PAST)
            self._admit(self.passes.with_one(dealt.way))
            return True
        self._sums = calls.standing.answers.sums
        return False

    def _let_in(self, within: bool) -> None:
        """Tell those that come what workers know of each other. Collective."""
        self.calls.standing.within = within
        self.calls.group.let_in()

    def _waits(self, passes: int) -> bool:
        """Wait for the others, on a newcomer that has rehearsed this number of passes, if these are
        all that they have begun, as far as it knows. Return True if they are, and the others are
        there."""
        calls, begun = self.calls, self.calls.standing.trained
        if passes >= len(begun):
            self._belongings.tidy()  # before the others wait for it, as a rule
        if calls.group.joins and passes >= len(begun):
            calls.group.let_in()  # and then the others are at this pass, or a later one
            if passes > len(begun):
                raise calls.group.turned_away(_STRAYS)
        return not calls.group.joins and passes == len(begun)

    def joins_within(self, one: Pass, given: bool) -> bool:
        """Return True if a newcomer, which rehearses a pass, is among the others from now on: they
        are in it, and it goes on where they are (`resumed_at`). It waits for them if they may be.
        ``given``: it has had a batch of it."""
        calls = self.calls
        if self._script.found is not None or not calls.rehearses:
            return False
        # Its own number of batches is of use if it begins to count after a step, as they do.
        ready = calls.standing.answers.over and (self._moved or not given)
        let_in = not one.fixed_length and calls.group.strays <= _MOST_STRAYS
        if not (ready and let_in and self._belongings.has_optimizer):
            return False
        if not (calls.group.joins or calls.standing.within):
            return False  # they wait where a pass begins
        if not self._waits(self.passes.rehearsed) or not calls.standing.within:
            return False
        self._admit(self.passes.course, one, held=given and one.way is not None and one.way.lasts)
        return True

    def begins_within(self, dealt: Dealt) -> bool:
        """Begin a pass within another one. Return True if a resumed script goes on in it; if it
        rehearses it, it has the model of the checkpoint again."""
        found = self._script.found
        if found is None:
            return False
        if self.passes.rehearsed == len(found.trained) and found.late == dealt.way.known_by:
            return True
        self._script.take()  # it may be a test
        return False

    def goes_on(self, dealt: Dealt | None) -> bool:
        """Return True if a script rehearses with another batch of the loader. ``dealt``: how its
        samples are dealt to workers; None: they are not, or this is a pass within another one."""
        standing = self.calls.standing
        if dealt is None:
            return not self.passes.rehearsed  # what comes before the training is done in full
        if self._script.found is not None:
            # What the script does after the pass, it does with this model.
            if dealt.by_batches:
                self._moves_back = True
            else:
                self._script.take()
            return False
        number = self.passes.rehearsed - 1
        trains = number >= len(standing.trained) or standing.trained[number]
        trains |= standing.answers.sums > self._sums
        if trains and not standing.answers.over:
            return True
        # To join within the pass that the others are in, it must have come to a step.
        may_join = self.calls.group.joins or standing.within
        is_there = number + 1 == len(standing.trained) and may_join
        return is_there and self._belongings.has_optimizer and not self._moved

    def sum_up(self) -> None:
        """Note that gradients were summed. Raises Left on a newcomer whose script has come to no
        pass, as the others' had not: it could go on for ever. Raises UsageError if checkpoints are
        to be kept, and it cannot be seen how far the script is."""
        calls, self._moved = self.calls, False
        calls.sum_up()
        now = calls.passes.now
        if self._held and now is not None:
            held, shares = self._held & {*calls.alive}, calls.standing.shares_of
            now.waste(len(shares(held) - shares({*calls.alive} - held)))
            self._held.clear()
        number = None if now is None else now.number
        if self._first_whole is not None and number is not None and number > self._first_whole:
            calls.group.recent = False  # its script has come through a pass as the others' have
            self._first_whole = None
        if calls.rehearses and not calls.standing.trained:
            raise calls.group.turned_away(NO_PASS)
        if calls.group.keeps and not self.rehearses:
            if now is None:
                raise UsageError(_UNSEEN.format("outside of a pass"))
            if not calls.passes.goes_through(now):
                raise UsageError(_UNSEEN.format("while several passes were under way"))

    def sum_up_some(self) -> None:
        """Note that some workers have summed gradients, of a model that others need not have.
        Raises Left on a newcomer, and UsageError if checkpoints are to be kept."""
        if self.calls.rehearses:
            raise self.calls.group.turned_away(_OF_SOME)
        if self.calls.group.keeps:
            raise UsageError(_UNSEEN.format("in a group of some workers"))

    def move(self) -> None:
        """Note that an optimizer has used the gradients."""
        self._moved = self._moves = True
        if self._moves_back and self._script.found is not None:
            self._script.take()
        self._moves_back = False

    def begin_uneven(self) -> None:
        """Note that workers may have no more data from now on, while others have. Raises UsageError
        if checkpoints are to be kept."""
        if self.calls.group.keeps:
            raise UsageError(_UNSEEN.format("within join()"))
        self._uneven = True

    def end_uneven(self) -> None:
        """Note that all are through with their data."""
        if self._uneven:
            self._uneven, self._moved = False, self._moves

    @property
    def begins_step(self) -> bool:
        """True if the next sum of gradients is the first one of an optimizer's next step; or if no
        optimizer of torch has stepped, as the script moves its parameters in another way. Within
        `join` each sum is one: those that have no data do not know of the others' optimizers."""
        return self._uneven or self._moved or not self._moves

    def rest(self, within: Pass | None = None) -> bool:
        """Keep what the script trains with, stop, and let newcomers in, if that is due. ``within``:
        the pass that it is in, before its next batch; None: it begins one. Return True if what is
        left of it is dealt anew (`Pass.deal_anew`). Collective, on all or on none."""
        calls = self.calls
        if self.rehearses or (within is not None and not self._has_stepped(within)):
            return False
        if self._uneven:
            return False
        if not calls.passes.goes_through(within):
            return False
        calls.group.rest()
        if within is None or not self._lets_in_within(within):
            return False
        self._let_in(within=True)
        self._admit(self.passes.course, within)
        anew = within.deal_anew(calls.alive)
        self._rhythm.begin_anew(within.given)
        return anew

    def _has_stepped(self, one: Pass) -> bool:
        """Return True if the script has had a batch of this pass since this was asked last, and an
        optimizer has stepped since gradients were summed last. The batch's calls are noted."""
        if one.number is None or not self._rhythm.beat(one.given, self.calls.made()):
            return False
        if self._rhythm.origin is None and self._moved and self.calls.standing.answers.over:
            self._rhythm.origin = self._rhythm.batches
        return self._moved

    def _lets_in_within(self, one: Pass) -> bool:
        """Return True if newcomers come in now, after a step in this pass. If a script reads ahead
        they would be some batches before the others. If it makes a call after some number of
        batches it loses one that comes so: then the next ones come in its rhythm."""
        standing, group = self.calls.standing, self.calls.group
        last = one.number == len(standing.trained) - 1 and not one.late
        if not (group.taught and standing.answers.over and one.may_be_joined and last):
            return False
        return not group.strays or (group.strays <= _MOST_STRAYS and self._rhythm.comes_round)

    def resumed_at(self) -> Place | None:
        """Return the place in the pass that begins now where a resumed script, or a newcomer, goes
        on, once; None: at its beginning."""
        place, self._place = self._place, None
        return place

    @property
    def early(self) -> UsageError | None:
        """Return what is wrong if a resumed script has come to its end before it was where it was
        to go on; None: nothing."""
        found = self._script.found
        if found is None or (found.place is None and self.passes.rehearsed >= len(found.trained)):
            return None
        return UsageError(
            f"this script has come to its end after {self.passes.rehearsed} passes through its "
            f"data, and {found.where} was written later: resume with the script that it was "
            "written by"
        )

    def _admit(self, course: int, within: Pass | None = None, held: bool = False) -> None:
        """Let those that have come have what all others have. ``course``: that of this script, with
        the pass that it begins or is ``within``. ``held``: a newcomer trains first with a batch
        that it has rehearsed with. Collective. Raises Left on a newcomer that cannot take it."""
        calls, standing = self.calls, self.calls.standing
        place = (calls.rank, calls.share) if calls.rehearses else None
        mine = place, course, held, self._belongings.kinds if calls.rehearses else []
        found = values_of(calls.group.exchange(mine, "newcomers"))
        come = {worker: there for worker, (there, *_) in found.items() if there is not None}
        taken = {standing.ranks[worker] for worker in found.keys() - come.keys()}
        for worker, (rank, share) in come.items():
            if rank not in taken:  # or another one has come for it, too
                standing.ranks[worker], standing.shares[rank] = rank, share
                taken.add(rank)
        if calls.rehearses and calls.group.worker not in standing.ranks:
            raise calls.group.turned_away(f"another worker has rank {calls.rank} by now")
        theirs = {there for worker, (_, there, *_) in found.items() if worker not in come}
        if calls.rehearses and course not in theirs:
            raise calls.group.turned_away(_STRAYS)
        if calls.rehearses and standing.answers.sums < standing.sums_needed:
            raise calls.group.turned_away(
                "its script had not yet summed gradients twice, as the others' had: torch puts "
                "gradients together in another way before that"
            )
        standing.heard(worker for worker in found if worker in standing.ranks)
        held_by = {worker for worker in come if found[worker][2]} & standing.ranks.keys()
        self._held = {standing.ranks[worker] for worker in held_by}
        if come:
            givers = [standing.ranks[worker] for worker in found if worker not in come]
            self._give(givers, [found[worker][3] for worker in come], within)
        if calls.rehearses:
            if within is not None:
                standing.trained.pop()  # it begins once more
            calls.look_anew(self.passes.course if within is None else within.course)
            calls.rehearses = False
            self._first_whole = len(standing.trained) + (within is not None)
            calls.group.trains()
            calls.group.recent = True

    def _give(
        self, givers: list[int], kinds: Collection[Sequence[str]], within: Pass | None
    ) -> None:
        """Give what the first of these ranks trains with to those that rehearse, and where it is
        ``within`` a pass; the next one goes on for one that is lost. ``kinds``: of what those have
        (`Belongings.kinds`). Collective."""
        calls, belongings, looked = self.calls, self._belongings, False
        place = None if within is None or calls.rehearses else within.place

        def describe() -> bytes:
            nonlocal looked
            looked = True
            return pack(tuple(self._told(kinds, within, place)))

        def read(begin: int, out: Numbers) -> None:
            nonlocal looked
            if not looked:  # this worker goes on for the one that did
                belongings.look(theirs=kinds)
                looked = True
            belongings.read(begin, out, _tensors(place and place.left))

        told = _Told(*unpack(calls.group.from_one_of_all(describe)))
        size, write = told.size + (told.left or 0), None
        if calls.rehearses:
            expected = self._expect(told)
            left = None if told.left is None else np.empty(told.left // 8, np.int64)
            write = partial(write_bytes, [*expected.tensors, *_tensors(left)])
        calls.give(givers, size, read, "what newcomers need", write)
        if calls.rehearses:
            try:
                expected.settle()
                self._script.orders.take(told.orders)
            except UsageError as error:
                raise calls.group.turned_away(str(error)) from None
            self._moved, self._moves = told.moved
            self._rhythm = Rhythm(*told.rhythm)
            calls.standing.answers.sums = told.sums
            if within is not None:
                used, workers, summed = told.place
                self._place = Place(used, workers, left, summed)

    def _told(
        self, kinds: Collection[Sequence[str]], within: Pass | None, place: Place | None
    ) -> _Told:
        """Return what newcomers are told. Raises PeersLost on a newcomer: nobody else is left."""
        if self.calls.rehearses:
            raise PeersLost("all workers that had the model are lost")
        try:
            self._belongings.look(theirs=kinds)
        except Exception as error:  # noqa: BLE001 - it is the newcomer's problem, and not theirs
            return _Told(problem=f"what the others train with cannot be given: {error!r}")
        return _Told(
            described=self._belongings.described,
            size=self._belongings.size,
            left=None if place is None or place.left is None else place.left.nbytes,
            orders=self._script.orders.told(within and within.way and within.way.loader),
            place=(0, 1, False) if place is None else (*place[:2], place.summed),
            moved=(self._moved, self._moves),
            rhythm=(self._rhythm.batches, self._rhythm.origin),
            sums=self.calls.standing.answers.sums,
        )

    def _expect(self, told: _Told) -> Expected:
        """Return what this newcomer is to have. Raises Left if there is a problem with it."""
        try:
            if told.problem is not None:
                raise UsageError(told.problem)
            self._belongings.check(told.described)
            return self._belongings.expect(told.described, told.size)
        except UsageError as error:
            raise self.calls.group.turned_away(str(error)) from None


def _tensors(left: Samples | None) -> list[torch.Tensor]:
    """Return samples that are left as a tensor, if there are any."""
    return [] if left is None else [torch.from_numpy(left)]
