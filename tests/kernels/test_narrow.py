"""Sums in fewer bits: the definition against NumPy's own numbers, and the loops against it."""

from __future__ import annotations

from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from spotmpi.kernels import cpu, narrow_loops, reference
from spotmpi.kernels.reference import FORMATS, NARROWED_BLOCK, narrowed_bytes

SIZES = (0, 1, 2, 7, NARROWED_BLOCK - 1, NARROWED_BLOCK, NARROWED_BLOCK + 1, 5 * NARROWED_BLOCK + 3)
KINDS = ("random", "odd", "tiny", "huge", "broken")
MOST = float(np.finfo(np.float32).max)


@pytest.fixture(autouse=True, params=["compiled", "as users have it"])
def _who_does_it(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is compiled; or what is small is not."""
    if request.param == "compiled":
        monkeypatch.setattr(cpu, "FEW", 0)


@pytest.fixture(autouse=True)
def _numpy_says_nothing_about_overflow() -> Any:
    with np.errstate(all="ignore"):
        yield


def make(size: int, kind: str, seed: int) -> Any:
    """Ordinary numbers; of every magnitude, at both ends, or broken ones among them."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(size)
    if kind in ("odd", "broken"):
        x *= 10.0 ** rng.integers(-46, 38, size)
        x[rng.random(size) < 0.1] = -0.0
    if kind == "tiny":
        x *= 10.0 ** rng.integers(-46, -28, size)
    if kind == "huge":
        x = rng.choice([-1.0, 1.0], size) * MOST * (1 - rng.random(size) * 2e-3)
    if kind == "broken":
        bad = rng.random(size) < 0.002
        x[bad] = rng.choice([np.nan, np.inf, -np.inf], int(bad.sum()))
    return np.clip(x, -MOST, MOST, out=x, where=np.isfinite(x)).astype(np.float32)


def summed(kernels: Any, form: str, inputs: list[Any], rest: Any, came: Any = None) -> list[Any]:
    """What comes of it: bytes, what they say, and what follows."""
    wire = np.full(narrowed_bytes(rest.size, form), 77, np.uint8)
    total, following = np.full_like(rest, 77), np.full_like(rest, 77)
    scales = [1.0, 3.0, 0.3, 7.0, 1.0][: len(inputs)]
    kernels.narrow_sum(wire, total, following, rest, came, inputs, scales, form)
    return [wire, total, following]


def alone(form: str, x: Any) -> list[Any]:
    """Just these numbers."""
    return summed(reference, form, [x], np.zeros_like(x))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_loops_equal_the_reference_to_the_bit(form: str, kind: str) -> None:
    """Also of NaNs: they go to all replicas, whose bits must be equal."""
    for seed, size in enumerate(SIZES):
        rest = np.where(np.isfinite(make(size, kind, seed)), make(size, kind, seed), 0)
        came = None
        for count in (1, 0, 2, 5):
            inputs = [make(size, kind, 10 * seed + one) for one in range(count)]
            before = [one.copy() for one in (*inputs, rest)]
            expected = summed(reference, form, inputs, rest, came)
            got = summed(cpu, form, inputs, rest, came)
            # Which NaN a sum of two is, compilers decide; what travels is one NaN.
            for one, other in zip(expected, got, strict=True):
                assert one.tobytes() == other.tobytes()
            assert [one.tobytes() for one in before] == [one.tobytes() for one in (*inputs, rest)]
            came, wide = expected[0], [np.empty(size, np.float32) for _ in range(2)]
            reference.widen(wide[0], came, form)
            cpu.widen(wide[1], came, form)
            assert wide[0].tobytes() == wide[1].tobytes() == expected[1].tobytes()


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kind", ["random", "odd", "tiny", "huge"])
def test_nothing_finite_is_lost_or_becomes_infinite(form: str, kind: str) -> None:
    x = make(4321, kind, 3)
    _, says, following = alone(form, x)
    assert np.isfinite(says).all()
    # The difference of two close floats is exact.
    assert (says.astype(np.float64) + following == x).all()


def bound(form: str, x: Any) -> Any:
    """How far from each element what travels may be."""
    size = np.abs(x.astype(np.float64))
    if form == "bf16":
        return np.maximum(size * 2.0**-8, 2.0**-134)
    starts = range(0, len(x), NARROWED_BLOCK)
    most = np.concatenate(
        [np.full(len(part), part.max()) for part in (size[i : i + NARROWED_BLOCK] for i in starts)]
    )
    if form == "int8":
        return most / 254 * (1 + 1e-5)
    return np.maximum(size * 2.0**-11, most * 2.0**-38)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kind", ["random", "odd"])
def test_what_travels_is_as_near_as_the_format_can_be(form: str, kind: str) -> None:
    for seed in range(5):
        x = make(3000, kind, seed)
        _, says, _ = alone(form, x)
        assert (np.abs(says.astype(np.float64) - x) <= bound(form, x)).all()


def test_bf16_rounds_to_nearest_and_half_to_even() -> None:
    """Every float between two neighbours goes to the nearer one."""
    low = np.arange(0x3F80, 0x3FA0, dtype=np.uint32) << 16
    for away in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        x = (low + np.uint32(away)).view(np.float32)
        up = away > 0x8000 or (away == 0x8000 and low >> 16 & 1)
        expected = (low + np.where(up, np.uint32(0x10000), np.uint32(0))).view(np.float32)
        assert (alone("bf16", x)[1] == expected).all()


def test_fp16_is_numpys_half_of_what_its_block_is_divided_by() -> None:
    x = make(NARROWED_BLOCK, "random", 1)
    x[0] = 20_000.0  # divided by 1
    assert (alone("fp16", x)[1] == x.astype(np.float16).astype(np.float32)).all()
    two = np.float32(2.0**90)
    assert (alone("fp16", x * two)[1] == alone("fp16", x)[1] * two).all()


def test_int8_has_127_steps_to_each_side_of_a_block() -> None:
    x = np.arange(-127, 128).astype(np.float32) * np.float32(0.5)
    wire, says, following = alone("int8", x)
    assert (wire[4:].view(np.int8) == np.arange(-127, 128)).all()
    assert np.abs(following).max() < 1e-5
    assert (np.abs(says) <= 63.5).all()
    # Blocks have scales of their own.
    x = np.concatenate([np.full(NARROWED_BLOCK, 1e20), np.full(NARROWED_BLOCK, 1e-20)])
    assert np.allclose(alone("int8", x.astype(np.float32))[1], x, rtol=1e-6)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_broken_is_seen_and_leaves_nothing_behind(form: str, bad: float) -> None:
    x = make(3 * NARROWED_BLOCK, "random", 4)
    x[NARROWED_BLOCK + 5] = bad
    _, says, following = alone(form, x)
    broken = ~np.isfinite(says)
    assert broken[NARROWED_BLOCK + 5]
    block = slice(NARROWED_BLOCK, 2 * NARROWED_BLOCK)
    if form == "int8":  # a byte cannot say it: the block does
        assert np.isnan(says[block]).all()
        assert broken.sum() == NARROWED_BLOCK
    else:
        assert np.array_equal(says[NARROWED_BLOCK + 5], bad, equal_nan=True)
        assert broken.sum() == 1
    assert np.isfinite(following).all()
    assert not following[broken].any()


@pytest.mark.parametrize("form", FORMATS)
def test_what_was_kept_comes_with_the_next_sums(form: str) -> None:
    """After many rounds all results together are all that was brought, but for the last rest."""
    x = [make(2000, "random", seed) for seed in range(50)]
    rest, results = np.zeros(2000, np.float32), np.zeros(2000)
    for one in x:
        _, says, rest = summed(cpu, form, [one], rest)
        results += says
    brought = np.sum(x, axis=0, dtype=np.float64)
    assert np.abs(results + rest - brought).max() < 1e-4
    step = bound(form, np.full(2000, 5.0, np.float32))
    assert (np.abs(results - brought) <= step + 1e-4).all()


@hypothesis.given(
    st.lists(st.integers(0, 2**32 - 1), max_size=70), st.sampled_from(FORMATS), st.booleans()
)
def test_any_bits_at_all_come_through_alike(words: list[int], form: str, twice: bool) -> None:
    x = np.array(words, np.uint32).view(np.float32)
    inputs = [x, x[::-1].copy()][: 1 + twice]
    rest = np.zeros_like(x)
    for one, other in zip(
        summed(reference, form, inputs, rest), summed(cpu, form, inputs, rest), strict=True
    ):
        assert one.tobytes() == other.tobytes()


def test_what_compiled_code_would_not_survive_is_refused() -> None:
    x = np.zeros(2000, np.float32)
    wire = np.zeros(narrowed_bytes(2000, "bf16"), np.uint8)
    with pytest.raises(TypeError, match="only float32 can be narrowed; got float64"):
        cpu.widen(np.zeros(1000), wire, "bf16")
    with pytest.raises(ValueError, match="2000 elements take 2008 bytes in int8"):
        cpu.widen(x, wire, "int8")
    with pytest.raises(ValueError, match="'int4' is no narrow format; there are bf16, fp16, int8"):
        cpu.widen(x, wire, "int4")
    with pytest.raises(ValueError, match="take 4000 bytes in bf16, in an array of bytes"):
        cpu.widen(x, np.zeros(4001, np.uint8)[1:], "bf16")
    with pytest.raises(ValueError, match="2 inputs and 1 scales"):
        cpu.narrow_sum(wire, x, x.copy(), x.copy(), None, [x, x], [1.0], "bf16")
    wire.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        cpu.narrow_sum(wire, x, x.copy(), x.copy(), None, [], [], "bf16")


def test_both_know_blocks_of_one_size() -> None:
    assert narrow_loops._BLOCK == NARROWED_BLOCK
