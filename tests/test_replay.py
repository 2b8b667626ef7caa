"""A trace proves what a run did: each sample once, and the parameters that follow from it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from spotmpi.arrays.narrowing import FORMATS
from spotmpi.errors import TraceError
from spotmpi.optimizers import SGD, Momentum, Optimizer
from spotmpi.protocol.host_ring import orders
from spotmpi.protocol.sampler import Sampler
from spotmpi.replay import check_exactly_once, check_replicas, replay, steps, uses
from spotmpi.trace.records import Record

N = 50
RNG = np.random.default_rng(7)
X = RNG.standard_normal((N, 4))
Y = X @ np.array([1.0, -2.0, 3.0, 0.5]) + 0.25

Params = dict[str, npt.NDArray[np.float64]]


def gradient(params: Params, samples: npt.NDArray[np.int64]) -> Params:
    """The mean gradient of least squares."""
    # No BLAS: it may raise floating point flags on finite numbers, and warnings are errors.
    error = (X[samples] * params["w"]).sum(1) + params["b"] - Y[samples]
    return {"w": (error[:, None] * X[samples]).mean(0), "b": np.array(error.mean())}


def start() -> Params:
    return {"w": np.zeros(4), "b": np.zeros(())}


def step(number: int, *contributions: tuple[int, list[int] | None], rate: float = 0.1) -> Record:
    made = [
        {"worker": worker, "samples": samples, "weight": len(samples or ())}
        for worker, samples in contributions
    ]
    return {"event": "step", "at": 0.0, "step": number, "contributions": made, "rate": rate}


def resume(number: int) -> Record:
    return {"event": "resume", "at": 0.0, "step": number}


def run(passes: int = 3) -> list[Record]:
    """The steps of a run that loses worker 2 in its fourth and worker 0 in its sixth."""
    sampler = Sampler(N, batch_size=5, passes=passes, seed=(1,))
    workers = [0, 1, 2]
    records: list[Record] = []
    while deal := sampler.deal(workers):
        workers = {3: [0, 1], 5: [1]}.get(len(records), workers)
        made = [(worker, deal.of(worker).tolist()) for worker in workers]
        records.append(step(len(records), *made, rate=0.05 * len(workers)))
        sampler.count(workers)
    return records


def with_part(number: int, sent: int, *made: tuple[int, list[int] | None], loop: int = 0) -> Record:
    """A step of a round of three, whose parts were made with the ``sent``-th of them."""
    known = {"round": number // 3, "workers": [worker for worker, _ in made], "loop": loop}
    return {**step(number, *made), **known, "sent": sent}


def test_samples_of_a_step_after_a_part_count_if_its_worker_goes_on() -> None:
    """Here these are 4 and 5."""
    first = [with_part(n, 2, (0, [2 * n]), (1, [2 * n + 1])) for n in range(3)]
    # Worker 1 has died.
    alone = [with_part(n, 3, (0, [n + 2])) for n in range(3, 6)]
    used = [[one["samples"] for one in brought] for _, brought in uses([*first, *alone])]
    assert used == [[[0], [1]], [[2], [3]], [[4]], [[5]], [[6]], [[7]]]
    check_exactly_once([*first, *alone], 8, 1)
    both = [with_part(n, 3, (0, [n + 3]), (1, [])) for n in range(3, 6)]
    check_exactly_once([*first, *both], 9, 1)
    with pytest.raises(TraceError, match="used sample 5 again"):
        check_exactly_once([*first, with_part(3, 3, (0, [5]), (1, []))], 8, 1)


def test_no_sample_of_a_step_after_a_part_counts_after_a_resume_or_at_the_end() -> None:
    first = [with_part(n, 2, (0, [2 * n]), (1, [2 * n + 1])) for n in range(3)]
    again = [with_part(n, 3, (0, [n + 1]), (1, [])) for n in range(3, 6)]
    check_exactly_once([*first, resume(3), *again], 7, 1)
    with pytest.raises(TraceError, match="sample 4 is missing"):
        check_exactly_once(first, 6, 1)


def test_a_step_after_a_part_waits_for_the_next_round_of_its_own_loop() -> None:
    first = [with_part(n, 2, (0, [2 * n]), (1, [2 * n + 1])) for n in range(3)]
    within = [with_part(n, 3, (0, []), (1, []), loop=1) for n in range(3, 6)]
    alone = [with_part(n, 3, (0, [n - 1])) for n in range(6, 9)]
    check_exactly_once([*first, *within, *alone], 8, 1)


def by_hand(records: list[Record], beta: float) -> Params:
    """The same run in four lines of plain NumPy: the average of a step is that of its samples."""
    params, velocity = start(), start()
    for record in records:
        parts = [c["samples"] for c in record["contributions"]]
        mean = gradient(params, np.concatenate(parts).astype(int))
        for name in params:
            velocity[name] = beta * velocity[name] + mean[name]
            params[name] = params[name] - record["rate"] * velocity[name]
    return params


@pytest.mark.parametrize(("optimizer", "beta"), [(SGD(lr=1.0), 0.0), (Momentum(lr=1.0), 0.9)])
def test_a_replay_gives_the_parameters_of_the_run(optimizer: Optimizer, beta: float) -> None:
    records, params = run(), start()
    replayed = replay([{"event": "start", "at": 0.0}, *records], params, gradient, optimizer)
    expected = by_hand(records, beta)
    for name in expected:
        np.testing.assert_allclose(replayed[name], expected[name], rtol=1e-12)
        assert not params[name].any(), "the caller's parameters were changed"


def test_two_replays_are_equal_to_the_bit_and_the_order_of_workers_is_kept() -> None:
    a = replay(run(), start(), gradient, Momentum(lr=1.0))
    b = replay(run(), start(), gradient, Momentum(lr=1.0))
    assert a["w"].tobytes() == b["w"].tobytes()


def test_sums_between_hosts_are_made_in_the_order_of_the_hosts() -> None:
    """Pieces begin at different hosts; worker 2 was still learning."""
    brought = [np.float32(3), np.float32(3), np.float32(1e8)]

    def pull(params: Any, samples: Any) -> Any:
        return {"w": np.full(64, brought[samples[0]])}

    def replayed(record: Record) -> Any:
        return replay([record], {"w": np.zeros(64, np.float32)}, pull, SGD(lr=1.0))["w"]

    one = step(0, (0, [0]), (1, [1]), (3, [2]), rate=1.0)
    apart = replayed({**one, "hosts": [[0, 2], [1], [3]]})
    for piece, order in orders(64, [2, 1, 1]):
        first, second, third = (brought[which] for which in order)
        assert (apart[piece] == -(((first + second) + third) * np.float32(1 / 3))).all()
    assert (apart != replayed(one)).any()


def narrow_run(*steps_: Record) -> npt.NDArray[np.float32]:
    """What a training of 3000 numbers comes to whose gradients are those of its samples."""
    numbers = np.random.default_rng(3).standard_normal((N, 3000)).astype(np.float32)

    def gradient(_params: Any, samples: npt.NDArray[np.int64]) -> Any:
        return [numbers[samples[0]], np.ones(2)]

    begin = [np.zeros(3000, np.float32), np.zeros(2)]
    narrowed, whole = replay(steps_, begin, gradient, SGD(lr=1.0))
    assert (whole == -len(steps(steps_))).all()
    found: npt.NDArray[np.float32] = narrowed
    return found


def narrow_step(number: int, hosts: list[list[int]], form: str | None = "int8") -> Record:
    """Workers of these hosts bring one sample each, the same in each step."""
    record = step(number, *((one, [one]) for host in hosts for one in host), rate=1.0)
    return {**record, "hosts": hosts} | ({"narrow": form} if form else {})


def test_what_was_narrowed_is_narrowed_again_and_what_was_kept_is_added() -> None:
    hosts = [[0, 1], [2]]
    for form in FORMATS:
        for many in (1, 2, 9):
            done = [narrow_step(number, hosts, form) for number in range(many)]
            exact = narrow_run(*(narrow_step(number, hosts, None) for number in range(many)))
            off = float(np.abs(narrow_run(*done) - exact).max())
            # Each step moves by what was lost in the one before; one worker of three would be less.
            assert 0 < off < {"bf16": 0.02, "fp16": 0.003, "int8": 0.03}[form]


def test_a_replay_of_narrowed_sums_knows_who_keeps_what() -> None:
    together, apart = [[0, 1], [2]], [[0], [2]]
    lost = narrow_run(narrow_step(0, together), narrow_step(1, apart))
    back = narrow_run(narrow_step(0, together), narrow_step(1, apart), narrow_step(2, together))
    new = narrow_run(narrow_step(0, together), narrow_step(1, apart), narrow_step(2, [[0, 3], [2]]))
    assert len({one.tobytes() for one in (lost, back, new)}) == 3


def test_who_resumes_has_kept_nothing() -> None:
    hosts = [[0, 1], [2]]
    first, again = narrow_step(0, hosts), narrow_step(1, hosts)
    once = narrow_run(first)
    assert narrow_run(first, resume(1), again).tobytes() == (once + once).tobytes()
    assert narrow_run(first, again).tobytes() != (once + once).tobytes()
    void = narrow_run(first, narrow_step(1, hosts), resume(1), again)
    assert void.tobytes() == (once + once).tobytes()


def test_a_worker_without_samples_adds_nothing() -> None:
    alone = replay([step(0, (0, [1, 2]))], start(), gradient, SGD(lr=1.0))
    both = replay([step(0, (1, []), (0, [1, 2]))], start(), gradient, SGD(lr=1.0))
    none = replay([step(0, (1, []))], start(), gradient, SGD(lr=1.0))
    assert alone["w"].tobytes() == both["w"].tobytes()
    assert not none["w"].any()


def test_void_steps_are_not_replayed() -> None:
    void = [step(0, (0, [1])), step(1, (0, [2])), step(2, (0, [3])), resume(1), step(1, (0, [4]))]
    plain = [step(0, (0, [1])), step(1, (0, [4]))]
    assert [r["contributions"] for r in steps(void)] == [r["contributions"] for r in plain]
    after = replay(void, start(), gradient, SGD(lr=1.0))
    assert after["w"].tobytes() == replay(plain, start(), gradient, SGD(lr=1.0))["w"].tobytes()


def test_a_trace_may_begin_with_a_resume() -> None:
    assert [r["step"] for r in steps([resume(5), step(5), step(6)])] == [5, 6]


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([step(1)], "step 1 where step 0 is due"),
        ([step(0), step(0)], "step 0 where step 1 is due"),
        ([step(0), step(2)], "step 2 where step 1 is due"),
        ([step(0), resume(3)], "resume 3 where step 1 is due"),
        ([step(0), step(1), resume(1), step(2)], "step 2 where step 1 is due"),
    ],
)
def test_a_missing_or_repeated_step_is_named(records: list[Record], said: str) -> None:
    with pytest.raises(TraceError, match=said):
        steps(records)


def test_a_run_that_lost_workers_used_each_sample_once_in_each_pass() -> None:
    check_exactly_once(run(), N, 3)
    check_exactly_once([], 0, 5)
    check_exactly_once([], N, 0)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ([step(0, (0, [0, 1]), (1, [2, 1]))], "step 0: worker 1 used sample 1 again in pass 0"),
        ([step(0, (0, [0, 0]))], "step 0: worker 0 used sample 0 again"),
        ([step(0, (0, [0, 1])), step(1, (3, [1, 2]))], "step 1: worker 3 used sample 1 again"),
        ([step(0, (0, [0, 1, 2])), step(1, (0, [0, 0]))], "step 1: worker 0 used sample 0 again"),
        ([step(0, (0, [0, 3]))], "used sample 3 of 3"),
        ([step(0, (0, [-1]))], "used sample -1 of 3"),
        ([step(0, (0, [0, 2]))], "0 of 1 passes are complete, sample 1 is missing"),
        ([step(0, (0, [0, 2, 1])), step(1, (0, [0, 1, 2]))], "2 of 1 passes are complete"),
        ([], "0 of 1 passes are complete"),
        ([step(0, (0, None))], "does not say which samples worker 0 used"),
    ],
)
def test_the_first_offence_is_named(made: list[Record], said: str) -> None:
    with pytest.raises(TraceError, match=said):
        check_exactly_once(made, 3, 1)


def test_a_weight_that_is_not_the_number_of_samples_is_named() -> None:
    wrong: Any = step(0, (4, [0, 1, 2]))
    wrong["contributions"][0]["weight"] = 2
    with pytest.raises(TraceError, match="step 0: worker 4 has 3 samples and weight 2"):
        check_exactly_once([wrong], 3, 1)


def test_samples_that_are_not_told_cannot_be_replayed() -> None:
    record = step(0, (0, None))
    record["contributions"][0]["weight"] = 3
    with pytest.raises(TraceError, match="can be checked"):
        replay([record], start(), gradient, SGD(lr=1.0))


@pytest.mark.parametrize(
    "contributions", [None, 3, {"worker": 0}, [1], [{"worker": 0, "weight": 1}]]
)
def test_a_step_that_does_not_say_who_contributed_is_named(contributions: Any) -> None:
    record = {"event": "step", "at": 0.0, "step": 0, "rate": 0.1, "contributions": contributions}
    if contributions is None:
        del record["contributions"]
    with pytest.raises(TraceError, match="step 0 does not say what each worker contributed"):
        check_exactly_once([record], 3, 1)
    with pytest.raises(TraceError, match="step 0 does not say what each worker contributed"):
        replay([record], start(), gradient, SGD(lr=1.0))


def digested(event: str, step: int, digest: str | None, **fields: Any) -> Record:
    return {"event": event, "at": 0.0, "step": step, "digest": digest, **fields}


def test_survivors_that_hold_the_same_are_counted() -> None:
    records = [
        digested("recovered", 3, "aa", worker=0),
        digested("recovered", 3, "aa", worker=2),
        digested("step", 3, "aa"),
        digested("step", 4, "bb"),
        digested("recovered", 5, None, worker=2),
    ]
    assert check_replicas(records) == 2


@pytest.mark.parametrize("liar", ["step", "recovered"])
def test_a_survivor_that_holds_something_else_is_named(liar: str) -> None:
    records = [digested("recovered", 3, "aa", worker=1), digested(liar, 3, "ab", worker=2)]
    who = "worker 2" if liar == "recovered" else "the leader"
    with pytest.raises(TraceError, match=f"step 3: worker 1 has aa, {who} ab"):
        check_replicas(records)


def test_what_a_resume_made_void_is_compared_with_nothing() -> None:
    before = [digested("recovered", step, "aa", worker=0) for step in (3, 4)]
    resume = {"event": "resume", "at": 0.0, "step": 4}
    assert check_replicas([*before, resume, digested("recovered", 4, "bb", worker=0)]) == 3
    with pytest.raises(TraceError, match="step 3"):
        check_replicas([*before, resume, digested("recovered", 3, "bb", worker=0)])


def test_a_worker_that_is_lost_with_a_step_that_nobody_has_is_compared_with_nothing() -> None:
    """Found by a campaign: all others took the step again, without it."""
    alone, again = (digested("recovered", 3, at, worker=w) for at, w in (("aa", 2), ("bb", 0)))
    lost: Record = {"event": "recovery", "at": 0.0, "step": 3, "lost": [2]}
    assert check_replicas([alone, again, lost, digested("step", 3, "bb")]) == 1
    for other in ({**lost, "step": 4}, {**lost, "lost": [1]}):
        with pytest.raises(TraceError, match="step 3: worker 2 has aa, worker 0 bb"):
            check_replicas([alone, again, other])


def test_a_trace_that_says_that_it_lacks_steps_proves_nothing_about_them() -> None:
    whole = run()
    gap: Record = {"event": "gap", "at": 0.0, "step": 2, "steps": 2}
    torn = [*whole[:2], gap, *whole[4:]]
    with pytest.raises(TraceError, match="lacks 2 steps, from step 2 on"):
        check_exactly_once(torn, N, 3)
    with pytest.raises(TraceError, match="has gap 2 where step 3 is due"):
        steps([*whole[:3], gap])
    assert steps([*torn, resume(2), *whole[2:]]) == whole  # trained again
    with pytest.raises(TraceError, match="lacks 2 steps"):
        steps([*torn, resume(3)])
