"""How a torch script comes to where others are, or where it was before the job was resumed."""

from __future__ import annotations

from spotmpi.errors import PeersLost, UsageError
from spotmpi.protocol.plain_values import pack, unpack
from spotmpi.torch.collectives import NO_PASS, Collectives
from spotmpi.torch.dealing import Place
from spotmpi.torch.loaders import Dealt, Orders
from spotmpi.torch.passes import Pass, Passes
from spotmpi.torch.tensors import Numbers
from spotmpi.torch.torch_rounds import values_of

__all__ = ["Entrance"]

_UNSEEN = (
    "--checkpoint needs to see how far the script is, in one pass at a time through a DataLoader "
    "with DistributedSampler or ElasticSampler, or one of Accelerate, and gradients were summed "
    "{}: change that, or run it without --checkpoint and let it keep its own"
)
"""Why a script is refused with --checkpoint; it names where gradients were summed."""

_STRAYS = (
    "it has come to another pass than the others: its script has not gone through the same passes "
    "as theirs"
)
"""Why a newcomer is turned away."""


class Entrance:
    """The beginnings of passes through dealt samples: there newcomers come in, and a resumed script
    goes on.

    A newcomer runs its script from the beginning, without the others: its calls are answered as
    theirs were, or with its own values. It goes through each pass that they have begun with a batch
    or two, so that torch has made what it makes in its first steps. At the next pass it waits for
    them, and gets their modules, optimizers, schedulers and scalers. A resumed script does the same
    on all workers together, with the model of the checkpoint.
    """

    def __init__(self, calls: Collectives) -> None:
        self.calls = calls
        self._script = calls.group.script
        self._belongings = self._script.belongings
        self._place: Place | None = None
        """Where a resumed script goes on in the pass that begins now."""
        self._moved = False
        """True if an optimizer has used the gradients that were summed last."""
        self._moves = False
        """True if one has used any."""
        self._sums = 0
        """Sums of gradients that a newcomer had made when it began its last pass."""
        self._came_in: int | None = None
        """The pass in which this worker joined; None: it was there from the start."""
        self._moves_back = False
        """True if a resumed script is not to keep its next step, with which a pass ends."""

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
        calls = self.calls
        if self._script.found is not None:
            self._script.take()
            if self.passes.rehearsed < len(self._script.found.trained):
                return False
            self._place = calls.group.arrive()
            if self._place is not None:
                return True  # newcomers would begin it at its beginning: they wait for the next one
        if not calls.rehearses:
            if calls.group.keeps and not calls.standing.trained:
                self._belongings.look()  # that nothing can be kept is said now, and on all
            self.rest()
            if calls.group.taught:
                calls.group.let_in()
                self._admit(dealt)
            return True
        begun = calls.standing.trained
        if calls.group.joins and self.passes.rehearsed >= len(begun):
            calls.group.let_in()  # and then the others are at this pass, or a later one
            if self.passes.rehearsed > len(begun):
                raise calls.group.turned_away(_STRAYS)
        if not calls.group.joins and self.passes.rehearsed == len(begun):
            self._admit(dealt)
            return True
        self._sums = calls.standing.answers.sums
        return False

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
        return trains and not standing.answers.over

    def sum_up(self) -> None:
        """Note that gradients were summed. Raises Left on a newcomer whose script has come to no
        pass, as the others' had not: it could go on for ever. Raises UsageError if checkpoints are
        to be kept, and it cannot be seen how far the script is."""
        calls, self._moved = self.calls, False
        calls.sum_up()
        now = calls.passes.now
        if self._came_in is not None and now is not None and now.number != self._came_in:
            calls.group.is_recent(False)  # its script has come through a pass as the others' have
            self._came_in = None
        if calls.rehearses and not calls.standing.trained:
            raise calls.group.turned_away(NO_PASS)
        if calls.group.keeps and not self.rehearses:
            if now is None:
                raise UsageError(_UNSEEN.format("outside of a pass"))
            if not calls.passes.goes_through(now):
                raise UsageError(_UNSEEN.format("while several passes were under way"))

    def move(self) -> None:
        """Note that an optimizer has used the gradients."""
        self._moved = self._moves = True
        if self._moves_back and self._script.found is not None:
            self._script.take()
        self._moves_back = False

    @property
    def begins_step(self) -> bool:
        """True if the next sum of gradients is the first one of an optimizer's next step; or if no
        optimizer of torch has stepped, as the script moves its parameters in another way."""
        return self._moved or not self._moves

    def rest(self, within: Pass | None = None) -> None:
        """Keep what the script trains with, and stop, if that is due. ``within``: the pass that it
        is in, before its next batch; None: it begins one. Collective, on all or on none."""
        whole = within is None or (self._moved and within.number is not None)
        if whole and not self.rehearses and self.calls.passes.goes_through(within):
            self.calls.group.rest()

    def resumed_at(self) -> Place | None:
        """Return the place in the pass that begins now where a resumed script goes on, once; None:
        at its beginning."""
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

    def _admit(self, dealt: Dealt) -> None:
        """Let those that have come have what all others have. Collective. Raises Left on a newcomer
        that cannot take it."""
        calls, standing, course = self.calls, self.calls.standing, self.passes.with_one(dealt.way)
        place = (calls.rank, calls.share) if calls.rehearses else None
        found = values_of(calls.group.exchange((place, course), "newcomers"))
        come = {worker: there for worker, (there, _) in found.items() if there is not None}
        taken = {standing.ranks[worker] for worker in found.keys() - come.keys()}
        for worker, (rank, share) in come.items():
            if rank not in taken:  # or another one has come for it, too
                standing.ranks[worker], standing.shares[rank] = rank, share
                taken.add(rank)
        if calls.rehearses and calls.group.worker not in standing.ranks:
            raise calls.group.turned_away(f"another worker has rank {calls.rank} by now")
        theirs = {there for worker, (_, there) in found.items() if worker not in come}
        if calls.rehearses and course not in theirs:
            raise calls.group.turned_away(_STRAYS)
        if calls.rehearses and standing.answers.sums < standing.sums_needed:
            raise calls.group.turned_away(
                "its script had not yet summed gradients twice, as the others' had: torch puts "
                "gradients together in another way before that"
            )
        standing.heard(worker for worker in found if worker in standing.ranks)
        if come:
            self._give([standing.ranks[worker] for worker in found if worker not in come])
        if calls.rehearses:
            calls.rehearses, self._came_in = False, len(standing.trained)
            calls.group.trains()
            calls.group.is_recent(True)

    def _give(self, givers: list[int]) -> None:
        """Give what the first of these ranks trains with to those that rehearse, and the orders of
        samples; the next one goes on for one that is lost. Collective."""
        calls, belongings, looked = self.calls, self._belongings, False

        def describe() -> bytes:
            nonlocal looked
            looked = True
            return self._described()

        def read(begin: int, out: Numbers) -> None:
            nonlocal looked
            if not looked:  # this worker goes on for the one that did
                belongings.look()
                looked = True
            belongings.read(begin, out)

        if calls.rehearses:
            belongings.tidy()  # while another one looks
        problem, described, size, orders = unpack(calls.group.from_one_of_all(describe))
        if calls.rehearses:
            self._check(problem, described)
        numbers = calls.give(givers, size, read, "what newcomers need", calls.rehearses)
        if calls.rehearses:
            try:
                belongings.take(described, numbers)
                self._script.orders.take(orders)
            except UsageError as error:
                raise calls.group.turned_away(str(error)) from None
            calls.look_anew()

    def _described(self) -> bytes:
        """Return why nothing can be given, what there is to give, how many bytes follow, and the
        orders of samples. Raises PeersLost on a newcomer: nobody else is left."""
        if self.calls.rehearses:
            raise PeersLost("all workers that had the model are lost")
        try:
            self._belongings.look()
        except Exception as error:  # noqa: BLE001 - it is the newcomer's problem, and not theirs
            return pack([f"what the others train with cannot be given: {error!r}", b"", 0, []])
        known = self._belongings.described, self._belongings.size, self._script.orders.told()
        return pack([None, *known])

    def _check(self, problem: str | None, described: bytes) -> None:
        """Raise Left if there is a problem with what all others have."""
        try:
            if problem is not None:
                raise UsageError(problem)
            self._belongings.check(described)
        except UsageError as error:
            raise self.calls.group.turned_away(str(error)) from None
