"""Promises broken on purpose, one line each: a search that did not find them would be worthless."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from spotmpi.arrays.registry import Registry
from spotmpi.errors import PeersLost
from spotmpi.fabric import Between, Start
from spotmpi.fabric.sim.builds import Builds
from spotmpi.fabric.sim.newcomers import Newcomers
from spotmpi.fabric.sim.simulated_fabric import SimulatedFabric
from spotmpi.launch.head.membership_changes import MembershipChanges
from spotmpi.protocol import recovery
from spotmpi.protocol.control_word import ONCE
from spotmpi.protocol.dealer import Dealer
from spotmpi.protocol.host_ring import RING, STRAIGHT
from spotmpi.protocol.joining import Stage
from spotmpi.protocol.ledger import Ledger, Settlement
from spotmpi.protocol.membership import Membership
from spotmpi.protocol.recovery import (
    ControlRevoked,
    DoorState,
    Lost,
    PlannedChange,
    Recovery,
    Stamp,
    Survey,
    TokenKind,
    Verdict,
)
from spotmpi.protocol.sampler import Indices, Lease
from spotmpi.protocol.state_pages import PageOrder
from spotmpi.protocol.trials import Trial
from spotmpi.rounds.driver import Driver
from spotmpi.rounds.memory import RoundMemory
from spotmpi.rounds.round import OnceRound
from spotmpi.rounds.state_transfer import StateTransfer
from spotmpi.training.exchange import TrainingExchange
from spotmpi.training.keeping.checkpoints import Checkpoints
from spotmpi.training.round_runner import RoundRunner
from spotmpi.training.state.rate import Rate
from spotmpi.training.synchroniser import Synchroniser

Patch = pytest.MonkeyPatch


# Each mutation breaks one line of the protocol. A search that did not find it would be worthless.


def sums_go_another_way_than_the_trace_says(patch: Patch) -> None:
    true = RoundMemory.way

    def way(self: RoundMemory, found: Between) -> dict[str, Any]:
        turned = [STRAIGHT if way == RING else RING for way in found.ways]
        return true(self, found._replace(ways=turned))

    patch.setattr(RoundMemory, "way", way)


def the_way_that_was_chosen_is_not_taken(patch: Patch) -> None:
    patch.setattr(Trial, "way", lambda self, number: (STRAIGHT, RING)[number % 2])


def transition(patch: Patch, state: DoorState, event: object, action: Callable[..., list]) -> None:
    patch.setattr(Recovery, "TRANSITIONS", {**Recovery.TRANSITIONS, (state, event): action})


def a_prepared_worker_ignores_a_loss(patch: Patch) -> None:
    transition(patch, DoorState.PREPARED, Lost, lambda self, event: [])


def nobody_follows_into_the_build(patch: Patch) -> None:
    for state in (DoorState.PREPARED, DoorState.RECONCILING):
        transition(patch, state, ControlRevoked, lambda self, event: [])


def a_worker_gives_up_in_silence(patch: Patch) -> None:
    patch.setattr(Recovery, "_give_up", Recovery._build_without_verdict)


def a_token_with_an_older_view_is_stamped(patch: Patch) -> None:
    def reconcile(self: Recovery, event: recovery.Received) -> list:
        token, known = event.token, self.view
        self._grow(token.lost)
        if token.origin == self.me and known == token.lost:
            return self._accept_own(token)
        return [self._pass_on(replace(token, survey=token.survey.add(self.me, self._stamped())))]

    transition(patch, DoorState.RECONCILING, TokenKind.RECONCILE, reconcile)


def a_verdict_is_accepted_without_matching_the_view(patch: Patch) -> None:
    def accept(self: Recovery, event: recovery.Received) -> list:
        self._prepare(event.token)
        return [self._pass_on(event.token)]

    transition(patch, DoorState.RECONCILING, TokenKind.ACCEPT, accept)


def the_restart_is_not_passed_on(patch: Patch) -> None:
    transition(patch, DoorState.PREPARED, TokenKind.RESTART, lambda self, event: self._build())


def everybody_starts_a_token(patch: Patch) -> None:
    start = Recovery._start

    def start_anyway(self: Recovery) -> list:
        patch.setattr(recovery, "starter", lambda ring, lost: self.me)
        return start(self)

    patch.setattr(Recovery, "_start", start_anyway)


def a_view_is_started_again_whenever_it_is_heard_of(patch: Patch) -> None:
    start = Recovery._start

    def start_again(self: Recovery) -> list:
        self._started = None
        return start(self)

    patch.setattr(Recovery, "_start", start_again)


def surveying(**wrong: Callable[[Survey, Stamp], object]) -> Callable[[Patch], None]:
    """A survey that gets some fields wrong, made from the survey before and the stamp."""
    add = Survey.add

    def mutation(patch: Patch) -> None:
        def add_wrongly(self: Survey, worker: int, stamp: Stamp) -> Survey:
            fields = {name: rule(self, stamp) for name, rule in wrong.items()}
            return replace(add(self, worker, stamp), **fields)

        patch.setattr(Survey, "add", add_wrongly)

    return mutation


def a_loss_that_is_met_before_the_gradient_is_whole_is_forgotten(patch: Patch) -> None:
    def start(self: Driver, parts: int) -> Any:
        try:
            for part in self._exchange.memory.parts[self.started : parts]:
                self._started.append((yield Start(part)))
        except PeersLost:
            self._started.clear()

    patch.setattr(Driver, "start", start)


def what_comes_in_pieces_is_not_brought_again_where_sums_came_in_its_place(patch: Patch) -> None:
    bring = Synchroniser.bring
    patch.setattr(
        Synchroniser, "bring", lambda self: None if self._gradient.pieces else bring(self)
    )


def a_repair_commits_in_the_wrong_generation(patch: Patch) -> None:
    patch.setattr(Ledger, "repair", lambda self, verdict: self._close(self._generation))


def a_retry_counts_the_lost_as_contributors(patch: Patch) -> None:
    def adopt(self: Ledger, membership: Membership) -> None:
        self._members[membership.generation] = membership

    patch.setattr(Ledger, "adopt", adopt)


def the_ledger_forgets_earlier_memberships(patch: Patch) -> None:
    def adopt(self: Ledger, membership: Membership) -> None:
        self._members = {membership.generation: membership}
        self._generation = membership.generation

    patch.setattr(Ledger, "adopt", adopt)


def the_dealer_forgets_whose_deal_stands(patch: Patch) -> None:
    def resume(self: Dealer, dealt: int, dealt_for: Membership | None) -> None:
        if dealt <= self.committed:
            self._basis = None

    patch.setattr(Dealer, "resume", resume)


def the_seal_ignores_who_the_members_are(patch: Patch) -> None:
    attempt = Builds.attempt

    def seal_anyway(self: Builds) -> None:
        alive = frozenset(self._workers.processes)
        for worker, request in self._here.items():
            if request.members is not None:
                self._here[worker] = replace(request, members=alive)
        attempt(self)

    patch.setattr(Builds, "attempt", seal_anyway)


def a_step_is_published_before_it_is_stable(patch: Patch) -> None:
    after_round = RoundRunner.after_round

    def tell(self: RoundRunner) -> Any:
        yield from after_round(self)
        rounds, members = self._exchange, self._driver.membership.ids
        rounds.records.journal.stable(self._driver.ledger.committed, members[0])

    patch.setattr(RoundRunner, "after_round", tell)


def losses_of_a_failed_build_are_held_against_strangers(patch: Patch) -> None:
    def grow(self: Recovery, workers: frozenset[int]) -> None:
        self.view |= workers

    patch.setattr(Recovery, "_grow", grow)


def a_newcomer_is_admitted_beside_a_loss(patch: Patch) -> None:
    patch.setattr(Verdict, "change", property(lambda self: self.survey.plan))


def whoever_leaves_is_still_counted(patch: Patch) -> None:
    without = Membership.without

    def staying(self: Membership, gone: Any, generation: int, newcomer: Any = None) -> Membership:
        lost = [worker for worker in gone if worker % 2]
        return without(self, lost, generation, newcomer)

    patch.setattr(Membership, "without", staying)


def a_newcomer_trains_before_it_has_all_parts(patch: Patch) -> None:
    def hasty(self: PageOrder, rest: bool) -> tuple[int, ...]:
        self.part = (self.part + 1) % self.parts
        done = tuple(self.learning) if rest else ()
        self.forget(done)
        return done

    patch.setattr(PageOrder, "last_due", property(lambda self: bool(self.learning)))
    patch.setattr(PageOrder, "given", hasty)


def a_part_is_not_what_it_was_before_the_round(patch: Patch) -> None:
    bring = StateTransfer.bring_page

    def bring_late(self: StateTransfer, generation: int, full: tuple[int, ...]) -> None:
        bring(self, generation, full)
        for arena in self.arena:
            arena.contributions[0][-1] += self.me == full[-1]

    patch.setattr(StateTransfer, "bring_page", bring_late)


def a_page_goes_with_a_round_as_long_as_somebody_learns(patch: Patch) -> None:
    def open_now(self: StateTransfer) -> None:
        self._open = bool(self._pages.learning)

    patch.setattr(StateTransfer, "open", open_now)


def some_do_not_forget_a_newcomer_that_is_lost(patch: Patch) -> None:
    forget = StateTransfer.forget

    def forget_not(self: StateTransfer, workers: frozenset[int]) -> None:
        if self.me % 2:
            forget(self, workers)

    patch.setattr(StateTransfer, "forget", forget_not)


def whoever_leaves_is_not_in_the_plan(patch: Patch) -> None:
    due = TrainingExchange.due

    def stay(self: TrainingExchange) -> PlannedChange | None:
        plan = due(self)
        return plan and replace(plan, leaving=frozenset())

    patch.setattr(TrainingExchange, "due", stay)


def a_newcomer_takes_the_rate_of_its_own(patch: Patch) -> None:
    restore = Rate.restore

    def wrong(self: Rate, told: Any) -> None:
        reference, lr, factor = told
        restore(self, [reference, lr / 2, factor])

    patch.setattr(Rate, "restore", wrong)


def what_a_newcomer_was_dealt_while_it_learnt_counts(patch: Patch) -> None:
    count = Dealer.count
    patch.setattr(Dealer, "count", lambda self, full: count(self, self._drawn._lease.slots))


def a_committed_round_is_tried_again(patch: Patch) -> None:
    settle = Ledger.settle

    def retry(self: Ledger, verdict: Verdict) -> Settlement:
        found = settle(self, verdict)
        return Settlement.RETRY if found is Settlement.RECEIVE else found

    patch.setattr(Ledger, "settle", retry)


def what_the_lost_were_dealt_never_comes_back(patch: Patch) -> None:
    patch.setattr(Lease, "without", lambda self, workers: [])


def two_workers_are_dealt_the_same(patch: Patch) -> None:
    batch = Lease.batch

    def like_the_first(self: Lease, worker: int, step: int) -> Indices:
        return batch(self, self.slots[0] if worker == self.slots[-1] else worker, step)

    patch.setattr(Lease, "batch", like_the_first)


def the_lost_count_in_the_mean(patch: Patch) -> None:
    def adopt(self: Ledger, membership: Membership) -> None:
        self._members[membership.generation] = self._members[self._generation]
        self._generation = membership.generation

    patch.setattr(Ledger, "adopt", adopt)


def who_lacks_a_step_computes_another_gradient(patch: Patch) -> None:
    commit = TrainingExchange.commit

    def commit_less(self: TrainingExchange, *given: Any) -> None:
        before = self.training.progress.steps
        commit(self, *given)
        taken = self.training.progress.steps > before
        if taken and self.driver.membership.generation and self.me % 2:
            self.training.progress.steps -= 1

    patch.setattr(TrainingExchange, "commit", commit_less)


def a_worker_keeps_the_parameters_that_it_came_with(patch: Patch) -> None:
    patch.setattr("spotmpi.rounds.round.BeginRound.commit", lambda self, *given: None)


def everybody_does_what_is_to_be_done_once(patch: Patch) -> None:
    patch.setattr(TrainingExchange, "first", property(lambda self: self.me))


def a_value_that_was_lost_with_its_worker_counts(patch: Patch) -> None:
    def commit(self: OnceRound, *given: Any) -> None:
        if self.carries:
            self.answer = self.memory.alone.record[0].tobytes()

    patch.setattr(OnceRound, "commit", commit)


def whoever_is_told_to_leaves_in_the_middle_of_what_it_does_once(patch: Patch) -> None:
    commit = TrainingExchange.commit

    def plan(self: TrainingExchange, *given: Any) -> None:
        commit(self, *given)
        payload = self.memory.payload
        if payload is not None and payload.kind == ONCE and not self.boundary.stops:
            self.boundary = self.boundary._replace(changes=True)

    patch.setattr(TrainingExchange, "commit", plan)


def keeping(**wrong: bool) -> Callable[[Patch], None]:
    """Keepers that are told of each round something that is not so."""
    committed = Checkpoints.committed

    def mutation(patch: Patch) -> None:
        def commit(self: Checkpoints, *given: Any) -> None:
            said = inspect.signature(committed).bind(self, *given)
            said.arguments.update(wrong)
            committed(*said.args)

        patch.setattr(Checkpoints, "committed", commit)

    return mutation


def a_checkpoint_is_what_the_parameters_are_when_it_is_written(patch: Patch) -> None:
    copied = Registry.checkpoint

    def live(self: Registry) -> dict[str, Any]:
        return copied(self) | {name: array for name, _, array in self._arrays_by_name()}

    patch.setattr(Registry, "checkpoint", live)


def a_checkpoint_is_written_before_its_round_is_stable(patch: Patch) -> None:
    committed = Checkpoints.committed

    def commit(self: Checkpoints, *given: Any) -> None:
        committed(self, *given)
        if self._copy is not None:
            self._write(self._copy)
            self.wait()

    patch.setattr(Checkpoints, "committed", commit)


def a_checkpoint_counts_as_written_when_it_is_begun(patch: Patch) -> None:
    write = Checkpoints._write

    def begin(self: Checkpoints, *given: Any) -> None:
        write(self, *given)
        self.published = True

    patch.setattr(Checkpoints, "_write", begin)


def nobody_waits_for_the_last_one(patch: Patch) -> None:
    patch.setattr(Checkpoints, "keep", lambda self, *given: True)


def the_last_one_is_the_first_leaders_alone(patch: Patch) -> None:
    keep = Checkpoints.keep

    def or_not(self: Checkpoints, *given: Any) -> bool:
        return self._writer._fabric.me != 0 or keep(self, *given)

    patch.setattr(Checkpoints, "keep", or_not)


def a_job_stops_though_nothing_could_be_kept(patch: Patch) -> None:
    keep = Checkpoints.keep

    def pretend(self: Checkpoints, step: int, complete: bool) -> bool:
        return keep(self, step, complete) or not complete

    patch.setattr(Checkpoints, "keep", pretend)


def the_last_one_is_tried_once(patch: Patch) -> None:
    keep = Checkpoints.keep

    def pretend(self: Checkpoints, step: int, complete: bool) -> bool:
        return keep(self, step, complete) or complete

    patch.setattr(Checkpoints, "keep", pretend)


def a_sponsor_shows_nobody_the_way(patch: Patch) -> None:
    patch.setattr(Newcomers, "brief", lambda self, sponsor, briefing: None)


def whoever_knocks_is_not_in_the_plan(patch: Patch) -> None:
    due = TrainingExchange.due

    def stay(self: TrainingExchange) -> PlannedChange | None:
        plan = due(self)
        return plan and replace(plan, newcomer=None, sponsor=None)

    patch.setattr(TrainingExchange, "due", stay)


def a_second_one_is_started_when_the_first_one_takes_long(patch: Patch) -> None:
    watch = MembershipChanges._watch_over

    def impatient(self: MembershipChanges, newcomer: int) -> None:
        watch(self, newcomer)
        if self._growth.stage(newcomer) is Stage.CONNECTED:
            self._crew.recruit(self._verdict.host_of(newcomer))

    patch.setattr(MembershipChanges, "_watch_over", impatient)


def a_knock_is_not_heard(patch: Patch) -> None:
    patch.setattr(SimulatedFabric, "guest", lambda self: None)


def a_newcomer_takes_no_checkpoint_for_due(patch: Patch) -> None:
    patch.setattr(Checkpoints, "joins", lambda self, number: None)


KEEPING: dict[str, Callable[[Patch], None]] = {
    mutation.__name__: mutation
    for mutation in (
        a_checkpoint_is_what_the_parameters_are_when_it_is_written,
        a_checkpoint_is_written_before_its_round_is_stable,
        a_checkpoint_counts_as_written_when_it_is_begun,
        nobody_waits_for_the_last_one,
        the_last_one_is_the_first_leaders_alone,
        a_job_stops_though_nothing_could_be_kept,
        the_last_one_is_tried_once,
        a_newcomer_takes_no_checkpoint_for_due,
    )
} | {
    "a_new_leader_believes_that_the_last_one_has_written": keeping(confirmed=True),
    "nobody_writes_what_is_asked_for": keeping(wanted=False),
}

PLANNED: dict[str, Callable[[Patch], None]] = {
    mutation.__name__: mutation
    for mutation in (
        a_newcomer_is_admitted_beside_a_loss,
        whoever_leaves_is_still_counted,
        a_newcomer_trains_before_it_has_all_parts,
        a_part_is_not_what_it_was_before_the_round,
        a_page_goes_with_a_round_as_long_as_somebody_learns,
        what_a_newcomer_was_dealt_while_it_learnt_counts,
        some_do_not_forget_a_newcomer_that_is_lost,
        whoever_leaves_is_not_in_the_plan,
        a_newcomer_takes_the_rate_of_its_own,
        a_sponsor_shows_nobody_the_way,
        whoever_knocks_is_not_in_the_plan,
        a_second_one_is_started_when_the_first_one_takes_long,
        whoever_is_told_to_leaves_in_the_middle_of_what_it_does_once,
        a_knock_is_not_heard,
    )
}

PLANS_OF = {**dict.fromkeys(PLANNED, 1.0), a_newcomer_takes_no_checkpoint_for_due.__name__: 1.0}
"""Where newcomers are needed to find it."""

WORKERS_OF = {a_verdict_is_accepted_without_matching_the_view.__name__: 5}
"""Where with four it is found too seldom."""

BEGIN = {
    "a_page_goes_with_a_round_as_long_as_somebody_learns": 2050,
    "a_newcomer_is_admitted_beside_a_loss": 80,
    "some_do_not_forget_a_newcomer_that_is_lost": 450,
    "a_newcomer_trains_before_it_has_all_parts": 50,
    "a_checkpoint_is_written_before_its_round_is_stable": 530,
    "a_checkpoint_counts_as_written_when_it_is_begun": 200,
    "a_job_stops_though_nothing_could_be_kept": 120,
    "a_newcomer_takes_no_checkpoint_for_due": 14_900,
    "a_verdict_is_accepted_without_matching_the_view": 150,
    "a_loss_that_is_met_before_the_gradient_is_whole_is_forgotten": 140,
    "the_seal_ignores_who_the_members_are": 90,
    "the_survey_keeps_who_committed_first": 590,
    "the_survey_keeps_the_first_deal": 1500,
    "one_worker_that_ends_ends_all": 370,
}
"""The first number of a search that finds late what it looks for. If what is drawn changes, it is
as late as ever: then look where it begins best now."""

RECOVERING: dict[str, Callable[[Patch], None]] = {
    mutation.__name__: mutation
    for mutation in (
        a_prepared_worker_ignores_a_loss,
        nobody_follows_into_the_build,
        a_worker_gives_up_in_silence,
        a_token_with_an_older_view_is_stamped,
        a_verdict_is_accepted_without_matching_the_view,
        the_restart_is_not_passed_on,
        everybody_starts_a_token,
        a_view_is_started_again_whenever_it_is_heard_of,
        a_loss_that_is_met_before_the_gradient_is_whole_is_forgotten,
        what_comes_in_pieces_is_not_brought_again_where_sums_came_in_its_place,
        a_repair_commits_in_the_wrong_generation,
        a_retry_counts_the_lost_as_contributors,
        the_ledger_forgets_earlier_memberships,
        the_dealer_forgets_whose_deal_stands,
        the_seal_ignores_who_the_members_are,
        a_step_is_published_before_it_is_stable,
        losses_of_a_failed_build_are_held_against_strangers,
        a_committed_round_is_tried_again,
        what_the_lost_were_dealt_never_comes_back,
        two_workers_are_dealt_the_same,
        the_lost_count_in_the_mean,
        who_lacks_a_step_computes_another_gradient,
        a_worker_keeps_the_parameters_that_it_came_with,
        everybody_does_what_is_to_be_done_once,
        a_value_that_was_lost_with_its_worker_counts,
        sums_go_another_way_than_the_trace_says,
        the_way_that_was_chosen_is_not_taken,
    )
} | {
    "the_survey_forgets_the_low_mark": surveying(
        low=lambda before, stamp: max(before.high, stamp.progress)
    ),
    "the_survey_never_lowers_the_low_mark": surveying(low=lambda before, stamp: before.low),
    "the_survey_keeps_its_first_source": surveying(source=lambda before, stamp: before.source),
    "the_survey_keeps_who_committed_first": surveying(
        committed_in=lambda before, stamp: before.committed_in
    ),
    "the_survey_keeps_the_first_deal": surveying(dealt_in=lambda before, stamp: before.dealt_in),
    "one_worker_that_ends_ends_all": surveying(
        ending=lambda before, stamp: before.ending or stamp.ending
    ),
}

MUTATIONS = PLANNED | KEEPING | RECOVERING
