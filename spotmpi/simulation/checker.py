"""What a training promises, held against all that can be seen of it while it goes on.

The checker believes nobody. It sees what scripts see (batches, parameters, means), what the fabric
sees (tokens, seals) and what is written to the trace, and works out for itself what follows from
the gradients. It knows nothing of how the workers come to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from spotmpi.arrays.backend import digest_of
from spotmpi.fabric.sim.builds import Seal
from spotmpi.protocol.membership import Membership, WorkerId
from spotmpi.protocol.recovery import most_messages
from spotmpi.protocol.sampler import Indices
from spotmpi.simulation.commons import Commons
from spotmpi.simulation.following import Following
from spotmpi.simulation.means import mean_of, perhaps_full
from spotmpi.simulation.model import RATE, Array, first_params, whose
from spotmpi.simulation.truths import (
    Brought,
    is_asynchronous,
    is_together,
    steps_of_a_round,
    steps_until_heard,
)
from spotmpi.simulation.used_samples import UsedSamples
from spotmpi.training.keeping.checkpoints import MOST_TRIES

PATIENCE = 3
"""Rounds that a worker may yet take once it is told to leave, besides those that are excused."""

_ARRAYS = ("params", "optimizer", "strategy")
"""Of what a checkpoint has arrays, in this order."""

_NOTHING = np.empty(0, np.float32)

TO_KEEP = 3
"""Steps after a change in which one that was due is begun again, by whoever leads then."""


class Violation(AssertionError):
    """Something that a training promises did not hold."""


@dataclass
class _View:
    """What scripts have seen of one moment."""

    seen: object
    holders: list[WorkerId | None] = field(default_factory=list)
    """None is the trace, which does not die."""


@dataclass
class _Script:
    """How far one worker's script has come."""

    steps: int
    """Committed, as far as it has seen."""
    first: int
    """The first step that it brought a gradient to."""
    seals: int
    """Memberships sealed when it was seen last ..."""
    changes: int
    """... and how many of them changed who is a member."""
    level: int = 0
    """Steps when its last round of steps was over."""
    begun: int = 0
    """Gradients it has computed that could count."""
    jumped: int = 0
    """Steps of the training that it did not take, as its strategy was asynchronous."""
    refused: int = 0
    """Stops that could not be kept since it was seen last."""
    told: int | None = None
    """Steps it may yet take after it was told to leave."""


@dataclass(frozen=True)
class End:
    """What one worker came to."""

    steps: int
    params: bytes
    stopped: bool
    """The job was to stop before its script was over."""


class Checker:
    """Sees everything that every worker of one run does."""

    def __init__(
        self,
        members: Sequence[WorkerId],
        samples: int,
        passes: int,
        deaths: Mapping[WorkerId, float],
        keeps: int | None = None,
        arrays: int = 1,
        strategies: Sequence[str] = ("ssgd",),
    ) -> None:
        """``deaths``: who is dead, kept up to date by the simulation. ``keeps``: checkpoints are
        due after every so many steps, and when somebody asks; None: there are none. ``arrays``: so
        many are trained. ``strategies``: how, with all their options: with the first of these, and
        then with the others as they are asked for."""
        self.recoveries = 0
        self.graduates = 0
        """Newcomers that came to train."""
        self.worst_messages = 0.0
        """The most tokens that one worker sent between two seals, per loss."""
        self.ends: dict[WorkerId, End] = {}
        """Of those who came to the end of the training."""
        self._workers = len(members)
        self._passes = passes
        self._deaths = deaths
        self._keeps = keeps
        self._arrays = arrays
        self._wanted_now: tuple[int, str] = 0, strategies[0]
        """The strategy that scripts wanted last, and after which step."""
        self._wanted_once = {strategies[0]}
        """All that they have wanted."""
        self._seals: list[tuple[WorkerId, ...]] = [tuple(members)]
        self._changes = 0
        """Seals that changed who is a member."""
        self._generation = 0
        self._agreed: Membership | None = None
        """The last seal's, as some worker named it."""
        self._views: dict[object, _View] = {}
        self._scripts: dict[WorkerId, _Script] = {}
        self._gradients: dict[tuple[int, WorkerId], tuple[list[int], Array]] = {}
        self._right: dict[tuple[int, ...], list[float]] = {}
        self._left: dict[WorkerId, int] = {}
        """At which seal."""
        self._published = 0
        self._whole = True
        """No step is missing in the trace."""
        self._requests: dict[WorkerId, str] = {}
        """What newcomers were started for."""
        self._waits: dict[tuple[WorkerId, WorkerId, str], int] = {}
        """Steps that a sponsor may yet take while a newcomer waits for it."""
        self._ended = False
        self._kept: dict[int, bool] = {}
        """Checkpoints that were written: steps, and whether they say that training is over."""
        self._refused = 0
        """How often in a row none could be written ..."""
        self._refusals = 0
        """... and in all."""
        self._changed_after = 0
        """Steps that had been taken when the members changed last."""
        self._due: set[int] = set()
        """Steps after which somebody wanted one, as far as that cannot be taken back."""
        self._wishes: dict[WorkerId, int] = {}
        """Who has wanted one after which step, and has not seen it stable."""
        self._worked: dict[object, dict[WorkerId, bytes]] = {}
        """What was done once at some moment, by whom, and what came of it."""
        self._longest = max(map(steps_of_a_round, strategies))
        """Steps of a round."""
        self._heard = max(map(steps_until_heard, strategies))
        """Steps until a round ends with a word that was said after a wish."""
        self.pairs = Commons(arrays)
        """What workers come to that take steps at their own pace."""
        self._following = Following(strategies[0], arrays, self.pairs, self._first)
        self.switched = self._following.switched
        """From which strategy workers changed to which, change by change."""
        self._asynchronous = any(map(is_asynchronous, strategies))
        """At times they do."""
        self._round = 1 if all(map(is_asynchronous, strategies)) else self._longest
        """So many steps, or rounds where steps are not alike, make a round."""
        self._patience = PATIENCE * self._round
        self._used = UsedSamples(samples)
        self._early = False

    # What scripts see.

    def begins(self, worker: WorkerId, membership: Membership, steps: int, params: Array) -> None:
        """Its script trains from here on: at the beginning, or when a newcomer has learnt."""
        self._scripts[worker] = _Script(steps, steps, len(self._seals), self._changes, steps)
        self._member(worker, membership)
        self._see(worker, ("step", steps), params.tobytes())
        if worker >= self._workers:
            self.graduates += 1
        elif params.tobytes() != first_params(whose(params), len(params)).tobytes():
            raise Violation(f"worker {worker} begins with parameters that nobody brought")

    def paces(self, worker: WorkerId, steps: int, params: Array, velocity: Array) -> None:
        """It goes at its own pace from here on, as all do, from the model of all."""
        self._see(worker, ("step", steps), params.tobytes())
        self.pairs.begins(worker, steps, velocity)

    def gradient(
        self,
        worker: WorkerId,
        first: int,
        step: int,
        batch: Indices,
        grads: Array,
        asynchronous: bool,
    ) -> None:
        """It brings a gradient to ``step``, of a round of which that is the ``first``: once,
        whatever becomes of it. ``asynchronous``: its strategy is."""
        script = self._scripts[worker]
        if asynchronous:
            seen = self._views["step", first].seen
            assert isinstance(seen, bytes)
            agreed = np.frombuffer(seen, np.float32)
            self.hold(self.pairs.gradient(worker, first, agreed, batch, grads))
            return
        if step != script.steps or script.begun > step - script.first - script.jumped:
            raise Violation(
                f"worker {worker} computes gradient {script.begun} for step {step}, "
                f"after {script.steps - script.first} steps of its own"
            )
        script.begun += 1
        self._gradients[step, worker] = batch.tolist(), grads.copy()

    def stepped(
        self,
        worker: WorkerId,
        membership: Membership,
        steps: int,
        model: Array | None,
        told: bool,
        asynchronous: bool,
    ) -> None:
        """A step is taken. ``model``: that of all, if a round ends with it. ``told``: it had been
        told to leave before that began. ``asynchronous``: its strategy was."""
        script = self._scripts[worker]
        if steps != script.steps + 1 and not asynchronous:
            raise Violation(f"worker {worker} goes from step {script.steps} to step {steps}")
        if asynchronous:
            script.jumped += steps - script.steps
        excused = self._excused(script)
        if not asynchronous or model is not None:
            script.changes, script.refused = self._changes, 0
        if told and (not asynchronous or model is not None):
            script.told = excused + (self._patience if script.told is None else script.told - 1)
            if script.told < 0:
                raise Violation(f"worker {worker} was told to leave and stays")
        script.steps = steps
        self._member(worker, membership)
        if model is not None:
            self._wanted(worker, script.level)
            script.level = steps
            self._see(worker, ("step", steps), model.tobytes())

    def hold(self, wrong: str | None) -> None:
        """Something was looked at elsewhere; what is wrong with it."""
        if wrong is not None:
            raise Violation(wrong)

    def mean(self, worker: WorkerId, membership: Membership, label: object, answer: float) -> None:
        """It was told the mean of everybody's `question`."""
        script = self._scripts[worker]
        since = script.seals - 1
        self._member(worker, membership)
        self._see(worker, ("mean", script.steps, label), answer)
        if not any(abs(answer - mean) <= 1e-5 * mean for mean in self._means(script.steps, since)):
            raise Violation(f"worker {worker} was told {answer}, which is nobody's mean")

    def works(self, worker: WorkerId, moment: object) -> bytes:
        """It does what is to be done once, which others do again only if it dies. What comes of it
        is of another size on each worker."""
        before = self._worked.setdefault(moment, {})
        if living := before.keys() - self._deaths.keys():
            raise Violation(f"worker {worker} does what {[*living]} have done: {moment}")
        before[worker] = f"{moment} is done by {worker}".encode() + bytes(worker % 7)
        return before[worker]

    def told(self, worker: WorkerId, moment: object, said: bytes) -> None:
        """It was told what came of what was done once."""
        self._see(worker, ("once", moment), said)
        if said not in self._worked.get(moment, {}).values():
            raise Violation(f"worker {worker} was told {said!r}, which nobody has done: {moment}")

    def _means(self, steps: int, since: int) -> list[float]:
        """All that may be right: of any membership ``since``, with whoever may have learnt."""
        key = steps, since, len(self._seals), len(self._scripts)
        if key not in self._right:
            known = {w for w, one in self._scripts.items() if one.first <= steps}
            self._right[key] = [
                mean_of(some)
                for members in self._seals[since:]
                for some in perhaps_full(members, known)
            ]
        return self._right[key]

    def ended(self, worker: WorkerId, steps: int, params: Array, stopped: bool) -> None:
        """It came to the end of the training, and may go."""
        self._see(worker, ("step", steps), params.tobytes())
        self._wanted(worker, steps)
        self.ends[worker] = End(steps, params.tobytes(), stopped)

    def left(self, worker: WorkerId, told: bool) -> None:
        """It is to go on no more, while others do."""
        if not told and worker < self._workers:
            raise Violation(f"worker {worker} has to go, and nobody told it to")
        if worker in self._seals[-1] and worker in self._scripts and not self._ended:
            raise Violation(f"worker {worker} leaves while it is a member")
        self._left[worker] = len(self._seals)

    def _member(self, worker: WorkerId, membership: Membership) -> None:
        """The membership that a worker trains with is the one that was sealed last."""
        self._scripts[worker].seals = len(self._seals)
        if membership is self._agreed:
            return
        if membership.ids != self._seals[-1]:
            raise Violation(
                f"worker {worker} trains with {membership.ids}, and {self._seals[-1]} were sealed"
            )
        if self._agreed is not None and membership != self._agreed:
            raise Violation(f"{membership} is {self._agreed} for others than worker {worker}")
        if self._agreed is None and membership.generation < self._generation:
            raise Violation(f"generation {membership.generation} comes after {self._generation}")
        self._agreed, self._generation = membership, membership.generation

    def _see(self, worker: WorkerId | None, moment: object, seen: object) -> None:
        """No two who live ever differ about a moment, nor does anybody from the trace (None).

        A newcomer that was turned away has shown nothing to the world, whatever it was told.
        """
        view = self._views.setdefault(moment, _View(seen))
        if view.seen != seen:
            gone = self._deaths.keys() | (self._left.keys() - self._scripts.keys())
            living = [holder for holder in view.holders if holder not in gone]
            if living:
                raise Violation(f"{living} and {worker} differ about {moment} (None: the trace)")
            self._views[moment] = view = _View(seen)
        view.holders.append(worker)

    def leaves_batches(self) -> None:
        """Scripts do not go through all of their passes."""
        self._early = True

    # What the fabric sees.

    def sealed(self, seal: Seal) -> None:
        """A membership is made: by few messages, and of nobody who had gone."""
        self.recoveries += 1
        if back := self._left.keys() & set(seal.members):
            raise Violation(f"workers {sorted(back)} have left, and are members again")
        if seal.change and seal.lost:
            raise Violation(f"{seal.change} is carried out while {[*seal.lost]} are lost")
        asked = [self._requests[one] for one in seal.members if one in self._requests]
        if len(asked) > len(set(asked)):
            raise Violation(f"{seal.members} are members, of whom two came for one request")
        if seal.members != self._seals[-1]:
            taken = (one.steps for one in self._scripts.values())
            self._changed_after = max(taken, default=0)
            self._changes += 1
        self._seals.append(seal.members)
        self._agreed = None
        losses = len(seal.lost)
        self.worst_messages = max(self.worst_messages, seal.messages / max(1, losses))
        # A build that fails for another reason costs as much as a loss.
        if seal.messages > most_messages(losses + seal.spoilt, seal.unasked):
            raise Violation(f"{seal.messages} messages of one worker for {losses} losses")

    # What is written to the trace.

    def written(self, event: str, record: Mapping[str, Any]) -> None:
        """A record of the trace: it is shown to the world and cannot be taken back."""
        if event == "step":
            self._publish(record)
        elif event == "gap":
            self._skip(record["step"], record["steps"])
            self._following.strategy = record["strategy_name"]
        elif event in ("recovery", "recovered"):
            if record["lost_steps"] or record["recomputed_gradients"]:
                raise Violation(f"{event} of generation {record['generation']} cost {record}")
        elif event == "way":
            self.hold(self._following.chosen(record))
        elif event == "strategy":
            self._change(record)
        elif event == "end":
            if self._ended:
                raise Violation("the training has ended, and ends again")
            self._ended = True

    @property
    def last_published(self) -> int | None:
        """The last step in the trace, None if there is none."""
        return self._published - 1 if self._published else None

    def _publish(self, record: Mapping[str, Any]) -> None:
        step = record["step"]
        if step != self._published:
            raise Violation(f"the trace has step {step} where step {self._published} is due")
        self._published = step + 1
        self.hold(self._following.went(record))
        contributions = record["contributions"]
        # Nothing goes ahead if the trace does not say so.
        taken, sent = self._following.taken, record.get("sent", self._longest)
        if not taken:
            self._used.begin(record["workers"])
        if [c["worker"] for c in contributions] != [*record["workers"]]:
            raise Violation(f"step {step}: contributions of others than {record['workers']}")
        brought = []
        for contribution in contributions:
            worker, weight = contribution["worker"], contribution["weight"]
            used = self._used.use(worker, contribution["samples"], taken >= sent)
            if used and self._whole:
                raise Violation(f"step {step}: {used}")
            if self._following.asynchronous or self._died_on_the_way(step, worker, taken >= sent):
                brought.append(Brought(worker, contribution["samples"], weight, _NOTHING))
                continue
            batch, grads = self._gradients[step, worker]
            if (weight and batch != contribution["samples"].tolist()) or weight not in (
                0,
                len(batch),
            ):
                raise Violation(f"step {step}: worker {worker} was dealt {batch}: {contribution}")
            brought.append(Brought(worker, np.array(batch), weight, grads))
        if (wrong := self._used.step()) and self._whole:
            raise Violation(f"step {step}: {wrong}")
        active = sum(bool(one.weight) for one in brought)
        follows = is_together(self._following.strategy)
        if record["rate"] != RATE * (active / self._workers if follows else 1.0):
            raise Violation(f"step {step}: rate {record['rate']} with {active} active workers")
        self._following.step(brought, record["rate"])
        if record["digest"] is not None:
            self._follow(step, record)

    def _died_on_the_way(self, step: int, worker: WorkerId, ahead: bool) -> bool:
        """True if it died before this step, with all that it brings to the round under way: the
        others committed that."""
        if (step, worker) in self._gradients:
            return False
        if worker not in self._deaths or not ahead:
            raise Violation(f"step {step}: worker {worker} brought something and took no such step")
        return True

    def _skip(self, step: int, steps: int) -> None:
        """Steps are missing: right only if all who trained them are lost, and nobody else knows
        them.

        What can be told from a trace then is told no more; what scripts see is.
        """
        living = self._scripts.keys() - self._deaths.keys() - self._left.keys()
        after = step + steps
        if step != self._published or any(self._scripts[w].first < after for w in living):
            raise Violation(f"the trace lacks {steps} steps where step {self._published} is due")
        self._published = after
        self._whole = False
        self._following.forget()

    def _follow(self, step: int, record: Mapping[str, Any]) -> None:
        """A round ends with this step."""
        if not self._whole:
            return
        self.hold(self._following.end(step, record))
        self._see(None, ("step", step + 1), self._following.model.tobytes())

    def _first(self) -> Array:
        seen = self._views["step", 0].seen
        assert isinstance(seen, bytes)
        return np.frombuffer(seen, np.float32)

    def _change(self, record: Mapping[str, Any]) -> None:
        """Another strategy is followed, which somebody has asked for."""
        step, name = record["step"], record["strategy_name"]
        if step != self._published:
            raise Violation(f"{name} is followed from step {step} on, not from {self._published}")
        if name == self._following.strategy:
            return  # whoever wrote it before did not live to write the step
        if name not in self._wanted_once:
            raise Violation(f"{name} is followed from step {step} on, which nobody has asked for")
        self.hold(self._following.change(step, name, self._deaths, self._whole))

    # Newcomers.

    def asked_for(self, newcomer: WorkerId, request: str) -> None:
        """One is started; another one for the same request only if this one comes to nothing."""
        self._requests[newcomer] = request

    def sponsored(self, sponsor: WorkerId, waiting: Iterable[tuple[WorkerId, object]]) -> None:
        """A step is over, and these newcomers wait for their sponsor to do something."""
        script, before = self._scripts[sponsor], self._waits
        kept = {key: rest for key, rest in before.items() if key[0] != sponsor}
        for newcomer, what in waiting:
            key = sponsor, newcomer, type(what).__name__
            rest = before.get(key, self._patience + 1) - 1 + self._excused(script)
            if rest < 0:
                raise Violation(f"newcomer {newcomer} waits for worker {sponsor} after a {key[2]}")
            kept[key] = rest
        self._waits = kept

    def _excused(self, script: _Script) -> int:
        """Steps that try nobody's patience. While all try to stop, nobody joins or leaves."""
        return self._changes - script.changes + script.refused * self._round

    # What is kept.

    def wants(self, worker: WorkerId, steps: int) -> None:
        """After the step that follows ``steps`` there shall be a checkpoint, says its script."""
        self._wishes.setdefault(worker, steps + 1)

    def wants_to_follow(self, strategy: str, steps: int) -> None:
        """From the step that follows ``steps`` on, says some script."""
        self._wanted_once.add(strategy)
        if strategy != self._wanted_now[1]:
            self._wanted_now = steps, strategy

    def _wanted(self, worker: WorkerId, steps: int) -> None:
        """What ``worker`` has asked for is known to whoever took all of these steps."""
        wish = self._wishes.get(worker, steps + 1)
        if wish <= steps:
            self._due.add(wish)
            del self._wishes[worker]

    def refused(self) -> None:
        """The disk takes no checkpoint now."""
        self._refused += 1
        self._refusals += 1

    def goes_on(self, worker: WorkerId) -> None:
        """It had come to the end or to a stop, which could not be kept."""
        if worker in self._scripts:
            self._scripts[worker].refused += 1

    def kept(self, step: int, state: Mapping[str, Any], writer: WorkerId, complete: bool) -> None:
        """A checkpoint is there: of a step that nobody can take back, and as it was after it.

        ``complete``: it says that training is over.
        """
        self._refused = 0
        if writer in self._deaths:
            raise Violation(f"worker {writer} is dead and writes a checkpoint")
        if state["steps"] != step:
            raise Violation(f"the checkpoint of step {step} is of step {state['steps']}")
        params = [state[f"params/{number}"] for number in range(self._arrays)]
        arrays: list[Array] = []
        for name in dict.fromkeys(one.rpartition("/")[0] for one in state):
            if name.partition("/")[0] in _ARRAYS:
                arrays += [state[f"{name}/{number}"] for number in reversed(range(self._arrays))]
        known = self._following.digest(step, state["followed"]) if self._whole else None
        if known is not None and digest_of(arrays) != known:
            raise Violation(f"the checkpoint of step {step} is not what the steps lead to")
        # None, as for the trace: no death takes it back.
        self._see(None, ("step", step), b"".join(one.tobytes() for one in params))
        if self._kept.get(step, False) > complete:
            raise Violation(f"step {step} was the last one, and is not")
        self._kept[step] = complete

    # At the end.

    def over(self) -> None:
        """Nobody is left: those who came to the end came to the same one, and left nothing out."""
        if not self.ends:
            return
        if len(set(self.ends.values())) > 1:
            raise Violation(f"workers came to different ends: {self.ends}")
        end = next(iter(self.ends.values()))
        if end.steps != self._published:
            raise Violation(f"the trace ends at step {self._published}, and the job at {end.steps}")
        # Nobody waits for anybody any more when the first of them writes it.
        if not self._ended and self._seals[-1][0] not in self._deaths:
            raise Violation("the trace has no end")
        if (
            self._whole
            and not (end.stopped or self._early)
            and (self._used.passed != self._passes or not self._used.between)
        ):
            raise Violation(f"{self._used.passed} of {self._passes} passes are complete")
        since, strategy = self._wanted_now
        late = end.steps - since > PATIENCE * self._longest and not self._changes
        if late and self._following.strategy != strategy:
            raise Violation(f"{strategy} was asked for in step {since}, and was never followed")
        self._check_kept(end)
        for worker in self.ends.keys() & self._scripts.keys():
            script = self._scripts[worker]
            if not self._asynchronous and script.begun != end.steps - script.first:
                raise Violation(
                    f"worker {worker} computed {script.begun} gradients "
                    f"for {end.steps - script.first} steps"
                )

    def _check_kept(self, end: End) -> None:
        """The very end is there, unless the job has tried for long; and nobody stops without it.

        One that was due before is there as well, if there was time, and nobody was lost.
        """
        if self._keeps is None or (self._refused >= MOST_TRIES and not end.stopped):
            return
        if self._kept.get(end.steps) is not (not end.stopped):
            raise Violation(f"{end} was to be kept, and these are: {self._kept}")
        if self._changed_after > end.steps - TO_KEEP or self._refusals:
            return
        on_the_way = [step for step, complete in self._kept.items() if not complete]
        for due in (*self._due, *range(self._keeps, end.steps, self._keeps)):
            latest = max(due, self._changed_after) + 1 + self._heard
            if due <= end.steps - self._heard and not any(
                due <= step <= latest for step in on_the_way
            ):
                raise Violation(f"a checkpoint was due at step {due}: {self._kept} were written")
