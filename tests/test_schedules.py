"""Campaigns hold the protocol to its promises, and find it when one is broken on purpose."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spotmpi import dummy, recovery, schedules, trace
from spotmpi.dummy import Replica
from spotmpi.errors import UsageError
from spotmpi.fabric.sim import Kill, Simulation
from spotmpi.ledger import Ledger
from spotmpi.lessons import Lessons
from spotmpi.membership import Membership
from spotmpi.recovery import (
    MESSAGES_PER_LOSS,
    ControlRevoked,
    Kind,
    Lost,
    Recovery,
    Stamp,
    State,
    Survey,
    Verdict,
    most_messages,
)
from spotmpi.replay import check_exactly_once
from spotmpi.sampler import Dealer
from spotmpi.schedules import Outcome, Run, drawn, execute, search, shrink


@pytest.mark.parametrize(
    ("workers", "runs"), [(1, 5), (2, 150), (3, 150), (4, 150), (8, 80), (16, 80)]
)
def test_no_schedule_of_a_campaign_breaks_a_promise(workers: int, runs: int) -> None:
    outcomes: list[Outcome] = []
    broken = search(drawn(workers, runs, seed=1), outcomes.append)
    assert broken is None, shrink(broken)
    assert len(outcomes) == runs
    assert sum(outcome.recoveries for outcome in outcomes) >= runs / 4 or workers == 1


@pytest.mark.parametrize(("workers", "losses"), [(8, 3), (64, 3), (64, 12), (512, 3)])
def test_messages_are_bounded_by_the_losses_and_not_by_the_workers(
    workers: int, losses: int
) -> None:
    kills = [Kill((7 * i + 3) % workers, 9 * workers + i) for i in range(losses)]
    outcome = execute(Run(workers, 5, tuple(kills)))
    assert outcome.recoveries >= 1
    assert 0 < outcome.worst_messages <= MESSAGES_PER_LOSS


def test_a_loss_that_interrupts_the_end_costs_no_more_than_both_of_them() -> None:
    """Found by a campaign: the tokens of an end that nobody came to finish count as well."""
    outcome = execute(Run(6, 3664843848, (Kill(3, 365),)))
    assert MESSAGES_PER_LOSS < outcome.worst_messages <= most_messages(1, unasked=True)


def test_a_thousand_workers_recover() -> None:
    kills = tuple(Kill(worker, 9000) for worker in (0, 500, 501))
    assert execute(Run(1000, 2, kills)).survivors == 997


def test_all_workers_may_die() -> None:
    outcome = execute(Run(3, 0, tuple(Kill(worker, 60 + worker) for worker in range(3))))
    assert outcome.survivors == 0


HISTORY = """
import zlib
from spotmpi.schedules import execute, drawn
transcript = []
for run in drawn(5, 8, 3):
    execute(run, transcript)
print(len(transcript), zlib.crc32("\\n".join(transcript).encode()))
"""


def test_the_same_seed_gives_the_same_run_in_every_process() -> None:
    """Whatever the process hashes strings to."""
    said = [
        subprocess.run(
            [sys.executable, "-c", HISTORY],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in (1, 2)
    ]
    assert said[0] == said[1]
    assert int(said[0].split()[0]) > 500


# Each mutation breaks one line of the protocol. A search that did not find it would be worthless.

Patch = pytest.MonkeyPatch


def transition(patch: Patch, state: State, event: object, action: Callable[..., list]) -> None:
    patch.setattr(Recovery, "TRANSITIONS", {**Recovery.TRANSITIONS, (state, event): action})


def a_prepared_worker_ignores_a_loss(patch: Patch) -> None:
    transition(patch, State.PREPARED, Lost, lambda self, event: [])


def nobody_follows_into_the_build(patch: Patch) -> None:
    for state in (State.PREPARED, State.RECONCILING):
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

    transition(patch, State.RECONCILING, Kind.RECONCILE, reconcile)


def a_verdict_is_accepted_without_matching_the_view(patch: Patch) -> None:
    def accept(self: Recovery, event: recovery.Received) -> list:
        self._prepare(event.token)
        return [self._pass_on(event.token)]

    transition(patch, State.RECONCILING, Kind.ACCEPT, accept)


def the_restart_is_not_passed_on(patch: Patch) -> None:
    transition(patch, State.PREPARED, Kind.RESTART, lambda self, event: self._build())


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
    try_build = Simulation._try_build

    def seal_anyway(self: Simulation) -> None:
        alive = frozenset(self.processes)
        for worker, members in self._build.items():
            self._build[worker] = members and alive
        try_build(self)

    patch.setattr(Simulation, "_try_build", seal_anyway)


def a_step_is_published_before_it_is_stable(patch: Patch) -> None:
    commit = Replica.commit

    def commit_and_tell(self: Replica, contributors: tuple[int, ...]) -> None:
        commit(self, contributors)
        self._publish(len(self.history))

    patch.setattr(Replica, "commit", commit_and_tell)


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
    def hasty(self: Lessons, rest: bool) -> tuple[int, ...]:
        self.part = (self.part + 1) % self.parts
        done = tuple(self._had) if rest else ()
        self.forget(done)
        return done

    patch.setattr(Lessons, "last_due", property(lambda self: bool(self._had)))
    patch.setattr(Lessons, "given", hasty)


def a_part_is_not_what_it_was_before_the_round(patch: Patch) -> None:
    prepare = Replica.prepare

    def prepare_late(self: Replica, membership: Membership) -> None:
        prepare(self, membership)
        if self._pages[0][0]:
            self._pages[0][0] += 1

    patch.setattr(Replica, "prepare", prepare_late)


def a_page_goes_with_a_round_as_long_as_somebody_learns(patch: Patch) -> None:
    def open_now(self: Replica) -> None:
        self._taught[0] = bool(self._lessons.learning)

    patch.setattr(Replica, "open", open_now)


def what_a_newcomer_was_dealt_while_it_learnt_counts(patch: Patch) -> None:
    count = Dealer.count
    patch.setattr(Dealer, "count", lambda self, full: count(self, self._drawn._deal.workers))


PLANNED: dict[str, Callable[[Patch], None]] = {
    mutation.__name__: mutation
    for mutation in (
        a_newcomer_is_admitted_beside_a_loss,
        whoever_leaves_is_still_counted,
        a_newcomer_trains_before_it_has_all_parts,
        a_part_is_not_what_it_was_before_the_round,
        a_page_goes_with_a_round_as_long_as_somebody_learns,
        what_a_newcomer_was_dealt_while_it_learnt_counts,
    )
}

MUTATIONS: dict[str, Callable[[Patch], None]] = (
    PLANNED
    | {
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
            a_repair_commits_in_the_wrong_generation,
            a_retry_counts_the_lost_as_contributors,
            the_ledger_forgets_earlier_memberships,
            the_dealer_forgets_whose_deal_stands,
            the_seal_ignores_who_the_members_are,
            a_step_is_published_before_it_is_stable,
            losses_of_a_failed_build_are_held_against_strangers,
        )
    }
    | {
        "the_survey_forgets_the_low_mark": surveying(
            low=lambda before, stamp: max(before.high, stamp.progress)
        ),
        "the_survey_never_lowers_the_low_mark": surveying(low=lambda before, stamp: before.low),
        "the_survey_keeps_its_first_source": surveying(source=lambda before, stamp: before.source),
        "the_survey_keeps_who_committed_first": surveying(
            committed_in=lambda before, stamp: before.committed_in
        ),
        "the_survey_keeps_the_first_deal": surveying(
            dealt_in=lambda before, stamp: before.dealt_in
        ),
        "one_worker_that_ends_ends_all": surveying(
            ending=lambda before, stamp: before.ending or stamp.ending
        ),
    }
)


def hunt() -> Run | None:
    """The first failing run among at most 1,300 of four workers; a calm one may fail as well."""
    try:
        return search(drawn(4, 1300, seed=1))
    except Exception:  # noqa: BLE001 - not even a run without deaths works
        return Run(4, 1, ())


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_protocol_is_found(name: str, monkeypatch: Patch) -> None:
    MUTATIONS[name](monkeypatch)
    monkeypatch.setattr("spotmpi.schedules.PLANS", float(name in PLANNED))
    broken = hunt()
    assert broken is not None
    finding = shrink(broken)
    assert set(finding.run.kills) <= set(broken.kills)
    assert finding.failure
    assert finding.transcript
    for kill in finding.run.kills:  # each one that is left is needed
        fewer = tuple(other for other in finding.run.kills if other is not kill)
        execute(replace(finding.run, kills=fewer))


def test_only_a_failing_run_can_be_shrunk() -> None:
    with pytest.raises(ValueError, match="breaks no promise"):
        shrink(Run(3, 0, (Kill(1, 50),)))


# The command.


def command(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    schedules.add_arguments(parser)
    return schedules.main(parser.parse_args(list(arguments)))


def test_the_command_sums_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--workers", "3", "--runs", "12", "--seed", "4") == 0
    said = capsys.readouterr()
    assert "12 runs of 3 workers broke no promise" in said.out
    assert said.err == ""


def test_the_command_traces_like_a_real_run(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    for seed in range(10):
        assert (
            command("--workers", "4", "--runs", "3", "--seed", f"{seed}", "--trace", f"{file}") == 0
        )
        records = list(trace.read(file))
        assert records[0]["event"] == "start"
        if any(record["event"] == "end" for record in records):
            check_exactly_once(records, 4 * dummy.BATCH * dummy.STEPS - 1, 1)
            if recoveries := [r for r in records if r["event"] == "recovery"]:
                assert all(record["total_ms"] > 0 for record in recoveries)
                assert any(record["event"] == "recovered" for record in records)
                return
    pytest.fail("no last run had a recovery")


def test_the_command_shows_what_broke(
    tmp_path: Path, monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    a_prepared_worker_ignores_a_loss(monkeypatch)
    file = tmp_path / "trace.jsonl"
    assert command("--workers", "4", "--runs", "300", "--seed", "1", "--trace", str(file)) == 1
    said = capsys.readouterr().out
    assert "--seed 1; its own seed is" in said
    assert "Hang: " in said
    assert " dies\n" in said
    assert next(trace.read(file))["event"] == "start"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "0"], "--workers is 0, expected at least 1"),
        (["--runs", "0"], "--runs is 0, expected at least 1"),
        (["--seed", "-1"], "--seed is -1, expected at least 0"),
        (["--trace", "nowhere/at/all"], "the trace nowhere/at/all cannot be written"),
    ],
)
def test_bad_arguments_are_refused_before_anything_runs(arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        command(*arguments)


@pytest.mark.campaign
def test_two_thousand_runs_of_sixteen_workers() -> None:
    broken = search(drawn(16, 2000, seed=2))
    assert broken is None, shrink(broken)


@pytest.mark.campaign
@pytest.mark.parametrize("workers", [2, 3, 4, 5, 6])
def test_many_runs_of_few_workers(workers: int) -> None:
    broken = search(drawn(workers, 10_000, seed=3))
    assert broken is None, shrink(broken)


@pytest.mark.campaign
def test_four_thousand_workers_recover() -> None:
    kills = tuple(Kill(worker, 36_000) for worker in (1, 2, 3000))
    assert execute(Run(4096, 2, kills)).survivors == 4093
