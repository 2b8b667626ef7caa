"""Every sample of a pass exactly once, whatever the membership does."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from spotmpi.errors import UsageError
from spotmpi.protocol.dealer import Dealer
from spotmpi.protocol.membership import Membership
from spotmpi.protocol.sampler import Sampler, generator, shuffled, told_of


@given(
    n=st.integers(0, 60),
    batch_size=st.integers(1, 9),
    passes=st.integers(0, 3),
    workers=st.integers(1, 6),
    fates=st.lists(st.sets(st.integers(0, 5)), max_size=40),
)
def test_each_sample_counts_once_in_each_pass(
    n: int, batch_size: int, passes: int, workers: int, fates: list[set[int]]
) -> None:
    """Step by step some of the workers are lost (never all), with what they were dealt."""
    sampler = Sampler(n, batch_size, passes, [3])
    alive = list(range(workers))
    counted: list[Counter[int]] = [Counter() for _ in range(passes)]
    while (deal := sampler.deal(alive)) is not None:
        assert max(len(deal.of(worker)) for worker in alive) <= batch_size
        sizes = [len(deal.of(worker)) for worker in alive]
        assert max(sizes) - min(sizes) <= 1
        lost = fates.pop() if fates else set()
        alive = [worker for worker in alive if worker not in lost] or alive[:1]
        for worker in alive:
            counted[deal.pass_number].update(deal.of(worker).tolist())
        sampler.count(alive)
    assert counted == [Counter(range(n))] * passes


@given(
    n=st.integers(0, 60),
    passes=st.integers(1, 3),
    workers=st.integers(1, 5),
    delay=st.integers(1, 3),
    fates=st.lists(st.tuples(st.sets(st.integers(0, 4)), st.booleans(), st.booleans()), max_size=9),
)
def test_a_step_after_a_contribution_counts_once_its_worker_contributes_again(
    n: int,
    passes: int,
    workers: int,
    delay: int,
    fates: list[tuple[set[int], bool, bool]],
) -> None:
    """Some workers are lost (never all): before they contribute, or ``late``, after it. Scripts
    may stop ``early`` in a round. Others take over who know the state only, as it came by JSON."""
    steps = delay + 2
    sampler, other = (Sampler(n, 2, passes, [3]) for _ in range(2))
    alive = list(range(workers))
    counted: list[Counter[int]] = [Counter() for _ in range(passes)]
    pending: dict[int, list[int]] = {}
    """What workers were to take after their last contributions."""
    left = n
    while (deal := sampler.deal(alive, steps, (), delay)) is not None:
        assert deal.delay == (0 if len(deal.samples) == left else delay)
        lost, late, early = fates.pop() if fates else (set(), False, False)
        stays = [worker for worker in alive if worker not in lost] or alive[:1]
        brought = alive if late else stays
        many = deal.steps - early
        if early:
            assert sampler.end([many] * len(deal.slots))
        before, pending = pending, {}
        for worker in brought:
            counted[deal.pass_number].update(before.get(worker, []))
            for step in range(many):
                batch = deal.batch(worker, step).tolist()
                if step < deal.steps - deal.delay:
                    counted[deal.pass_number].update(batch)
                else:
                    pending.setdefault(worker, []).extend(batch)
        sampler.count(brought)
        alive = stays
        done = counted[deal.pass_number].total() + sum(map(len, pending.values()))
        left = n - done % n if n else 0
        other.restore(json.loads(json.dumps(told_of(sampler.state()))))
        sampler, other = other, sampler
    assert not any(pending.values()), "nothing is pending after a pass"
    assert counted == [Counter(range(n))] * passes


def test_a_checkpoint_puts_what_is_pending_back() -> None:
    """Whoever resumes does not know whether others had taken these steps."""
    sampler, used = Sampler(40, 2, 1, [0]), Counter[int]()
    deal = sampler.deal([0, 1], 3, (), 1)
    assert deal is not None
    for worker, step in itertools.product([0, 1], range(2)):
        used.update(deal.batch(worker, step).tolist())
    sampler.count([0, 1])
    again = Sampler(40, 2, 1, [0])
    again.restore(sampler.kept())
    while (deal := again.deal([7])) is not None:
        used.update(deal.samples.tolist())
        again.count([7])
    assert used == Counter(range(40))


@given(
    steps=st.integers(0, 20),
    lost=st.sets(st.integers(1, 3), max_size=2),
    workers=st.integers(1, 5),
)
def test_a_restored_sampler_goes_on_where_the_other_stood(
    steps: int, lost: set[int], workers: int
) -> None:
    """Also with a pool, and on another number of workers."""
    one = Sampler(37, 2, 3, [1, 0])
    for _ in range(steps):
        if one.deal(range(4)) is None:
            break
        one.count(set(range(4)) - lost)
    other = Sampler(37, 2, 3, [1, 0])
    other.restore(one.state())
    while (deal := one.deal(range(workers))) is not None:
        again = other.deal(range(workers))
        assert again is not None
        assert (again.number, again.pass_number) == (deal.number, deal.pass_number)
        np.testing.assert_array_equal(again.samples, deal.samples)
        one.count(range(workers))
        other.count(range(workers))
    assert other.deal(range(workers)) is None


def test_a_newcomer_is_told_places_of_what_is_pending_and_not_the_samples() -> None:
    """All that it is told must fit into the head of a page."""
    workers = range(64)
    sampler = Sampler(1_000_000, 256, 1, [0])
    for _ in range(3):  # in the second one worker is lost
        sampler.deal(workers, 8, (), 4)
        sampler.count([one for one in workers if one or sampler.steps != 1])
    later = Sampler(1_000_000, 256, 1, [0])
    known = json.dumps(told_of(sampler.state()))
    assert len(known) < 16 * 8 * 256 + 100 * 64
    later.restore(json.loads(known))
    for one in (sampler, later):
        one.deal(workers, 8, (), 4)
        one.count(range(1, 64))
    back, again = (one.deal(workers, 8) for one in (sampler, later))
    assert back is not None
    assert again is not None
    np.testing.assert_array_equal(back.samples, again.samples)


def test_all_samples_of_a_step_are_found_without_a_search_for_each_worker() -> None:
    compared = 0

    class Counted(int):
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return int(self) == other

        __hash__ = int.__hash__

    many = 1024
    sampler = Sampler(2 * many, 1, 1, [0])
    deal = sampler.deal([Counted(worker) for worker in range(many)])
    assert deal is not None
    assert sum(len(deal.of(Counted(worker))) for worker in range(many)) == many
    sampler.count(Counted(worker) for worker in range(many))
    assert compared <= 4 * many


def test_whoever_trains_is_weighed_without_being_looked_at_one_by_one() -> None:
    """Also where some were lost, or learn and do not count: then by what they were dealt."""
    for n in (3, 7, 40):
        deal = Sampler(n, 2, 1, [0]).deal(range(5))
        assert deal is not None
        for counted in (range(5), (0, 2, 4), (4,), (), (1, 3, 9)):
            parts = [deal.of(worker) for worker in counted]
            assert deal.weigh(tuple(counted)) == (
                sum(map(len, parts)),
                sum(map(bool, map(len, parts))),
            )
            others = [deal.of(worker).tolist() for worker in range(5) if worker not in counted]
            assert [part.tolist() for part in deal.without(tuple(counted))] == others


@pytest.mark.parametrize(
    ("seed", "order"),
    [
        ([0, 0, 0], [1, 9, 0, 8, 4, 6, 7, 2, 3, 5]),
        ([0, 0, 1], [3, 8, 6, 0, 7, 4, 9, 2, 5, 1]),
        ([2**64 + 5, -1, 7], [2, 3, 6, 0, 1, 4, 7, 5, 9, 8]),
    ],
)
def test_the_order_of_samples_is_what_it_always_was(seed: list[int], order: list[int]) -> None:
    """A checkpoint of last year goes on with it, and a host with another NumPy deals the same."""
    assert shuffled(10, seed).tolist() == order
    sampler = Sampler(10, 10, 1, seed[:-1])
    sampler.restore({**sampler.state(), "pass": seed[-1]})
    sampler.passes = seed[-1] + 1
    deal = sampler.deal([0])
    assert deal is not None
    assert deal.samples.tolist() == order


def test_long_orders_are_what_they_always_were_too() -> None:
    digest = hashlib.sha256(shuffled(1000, [3, 1, 4]).astype("<i8").tobytes()).hexdigest()
    assert digest == "b98195ae05b0961a65429b46dfa5bb96f04651444a8389453f11d0f70296de20"


@given(n=st.integers(0, 300), seed=st.lists(st.integers(), max_size=4))
def test_each_sample_is_in_an_order_once(n: int, seed: list[int]) -> None:
    assert sorted(shuffled(n, seed).tolist()) == list(range(n))


def test_all_orders_are_equally_frequent() -> None:
    found = Counter(
        tuple(shuffled(4, [seed, 0, turn])) for seed in range(100) for turn in range(24)
    )
    assert len(found) == 24
    # Chi-squared with 23 degrees of freedom: beyond 49.7 with a probability of 0.001.
    assert sum((count - 100) ** 2 / 100 for count in found.values()) < 49.7


def test_a_deal_stands_until_it_counts() -> None:
    sampler = Sampler(20, 2, 1, [0])
    deal = sampler.deal([0, 1, 2])
    assert deal is sampler.deal([0, 2])
    sampler.count([0, 2])
    following = sampler.deal([0, 2])
    assert deal is not None
    assert following is not None
    # What worker 1 had comes back first.
    np.testing.assert_array_equal(following.samples[:2], deal.of(1))
    assert not len(following.of(1))


def test_passes_and_seeds_have_orders_of_their_own() -> None:
    def order(seed: int) -> list[list[int]]:
        sampler, seen = Sampler(50, 50, 2, [seed]), []
        while (deal := sampler.deal([0])) is not None:
            seen.append(deal.of(0).tolist())
            sampler.count([0])
        return seen

    first, second = order(0)
    assert first != second != sorted(second)
    assert order(0) == [first, second]
    assert order(1) != [first, second]


@pytest.mark.parametrize(
    ("arguments", "name"), [((-1, 1, 1), "n"), ((1, 0, 1), "batch_size"), ((1, 1, 1.5), "passes")]
)
def test_bad_arguments_are_named(arguments: tuple[int, int, int], name: str) -> None:
    with pytest.raises(UsageError, match=f"batches: {name} must be a whole number"):
        Sampler(*arguments, [0])


def test_a_state_of_another_data_set_is_refused() -> None:
    with pytest.raises(UsageError, match="resume with the same data"):
        Sampler(10, 1, 1, [0]).restore(Sampler(11, 1, 1, [0]).state())


def test_nothing_can_count_that_was_not_dealt() -> None:
    with pytest.raises(RuntimeError, match="no step"):
        Sampler(10, 1, 1, [0]).count([0])
    with pytest.raises(RuntimeError, match="no step"):
        Dealer().count([0])


def test_dealers_that_drew_before_and_after_a_recovery_deal_the_same() -> None:
    """One worker had drawn step 1 when worker 2 was lost, the other had not."""
    before = Membership.first(["h"] * 3)
    after = before.without({2}, 1)
    dealers, samplers = [Dealer(), Dealer()], [Sampler(30, 2, 1, [0]) for _ in range(2)]
    for dealer, sampler in zip(dealers, samplers, strict=True):
        assert dealer.draw(sampler, before) is not None
        dealer.count(before.ids)
    early = dealers[0].draw(samplers[0], before)
    dealt, generation = max(dealer.dealt for dealer in dealers)
    assert (dealt, generation) == (2, 0)
    for dealer in dealers:
        dealer.resume(dealt, before)
    late = dealers[1].draw(samplers[1], after)
    assert early is not None
    assert late is not None
    np.testing.assert_array_equal(early.samples, late.samples)
    assert early.slots == late.slots == before.ids


def test_batches_that_were_left_change_nothing_in_who_the_next_ones_are_dealt_to() -> None:
    """One script has gone on to its second batches before a loss, and the other one goes there."""
    before = Membership.first(["h"] * 3)
    after = before.without({2}, 1)
    dealt = []
    for ahead in (True, False):
        dealer, left, right = Dealer(), Sampler(30, 2, 1, [0]), Sampler(30, 2, 1, [1])
        members = before if ahead else after
        if not ahead:
            dealer.resume(1, before)
        assert dealer.draw(left, members) is not None
        dealer.drop(left)
        lease = dealer.draw(right, members)
        assert lease is not None
        dealt.append(lease)
    assert dealt[0].slots == dealt[1].slots == before.ids
    np.testing.assert_array_equal(dealt[0].samples, dealt[1].samples)


def test_a_step_that_nobody_has_drawn_is_dealt_to_the_new_members() -> None:
    before = Membership.first(["h"] * 3)
    after = before.without({2}, 1)
    dealer, sampler = Dealer(), Sampler(30, 2, 1, [0])
    dealer.resume(0, before)
    deal = dealer.draw(sampler, after)
    assert deal is not None
    assert deal.slots == after.ids


def test_random_numbers_follow_from_seed_worker_and_step() -> None:
    def draw(*key: int) -> float:
        return float(generator(*key).random())

    assert draw(1, 2, 3) == draw(1, 2, 3)
    assert len({draw(1, 2, 3), draw(0, 2, 3), draw(1, 0, 3), draw(1, 2, 0)}) == 4


@given(
    n=st.integers(1, 40),
    before=st.integers(0, 12),
    lost=st.sets(st.integers(0, 3), max_size=3),
    passes=st.integers(1, 3),
)
def test_what_is_told_of_after_a_step_is_what_is_there_after_it(
    n: int, before: int, lost: set[int], passes: int
) -> None:
    """And telling it changes nothing."""
    sampler, counted = Sampler(n, 2, passes, [1, 0]), set(range(4)) - lost
    for _ in range(before):
        if sampler.deal(range(4)) is not None:
            sampler.count(counted)
    if sampler.deal(range(4)) is None:
        assert sampler.over
        return
    now, told = sampler.state(), sampler.after(counted)
    assert now == sampler.state() | {"pool": now["pool"]}
    sampler.count(counted)
    then = sampler.state()
    np.testing.assert_array_equal(told.pop("pool"), then.pop("pool"))
    assert told == then


def test_batches_are_over_after_their_last_pass_and_those_of_nothing_at_once() -> None:
    sampler = Sampler(3, 2, 1, [0])
    assert not sampler.over
    sampler.deal([0, 1])
    assert not sampler.over
    sampler.count([0])
    assert not sampler.over  # worker 1's sample comes back
    sampler.deal([0, 1])
    sampler.count([0, 1])
    assert sampler.over
    assert Sampler(0, 2, 1, [0]).over
    assert Sampler(3, 2, 0, [0]).over


def test_without_a_deal_there_is_nothing_to_come_after() -> None:
    with pytest.raises(RuntimeError, match="no step of this sampler is dealt"):
        Sampler(3, 2, 1, [0]).after([0])


def test_a_dealer_that_comes_later_counts_from_the_others_step() -> None:
    sampler, dealer, members = Sampler(20, 2, 1, [0]), Dealer(), Membership.first(["h"] * 2)
    for _ in range(2):
        dealer.draw(sampler, members)
        dealer.count(members.ids)
    assert dealer.after() == 2
    dealer.draw(sampler, members)
    assert dealer.after() == 3
    late = Dealer()
    late.restore(dealer.after())
    dealer.count(members.ids)
    assert (late.committed, late.dealt, late.drawn) == (3, dealer.dealt, None)


@pytest.mark.parametrize(("n", "passes", "many"), [(37, 3, 4), (64, 2, 4), (1, 5, 3), (0, 2, 1)])
def test_it_knows_how_many_steps_are_to_come(n: int, passes: int, many: int) -> None:
    sampler, left = Sampler(n, 2, passes, [1]), []
    while sampler.deal(range(many)) is not None:
        left.append(sampler.left(many))
        sampler.count(range(many))
    assert left == [*range(len(left), 0, -1)]
    assert sampler.left(many) == 0


def test_after_a_loss_more_steps_are_to_come() -> None:
    sampler = Sampler(40, 2, 1, [1])
    assert sampler.left(4) == 5
    sampler.deal(range(4))
    sampler.count([0, 1, 2])
    assert sampler.left(3) == 6, "what the lost worker was dealt is dealt again"
