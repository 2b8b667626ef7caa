"""Sums that go right into the next state, against a sum and an update by themselves."""

import numpy as np
import pytest

from spotmpi.kernels import cpu, moving, moving_loops, reference
from tests.kernels.test_cpu import DTYPES, KINDS, SCALARS, bits, make

SIZES = (0, 1, 1023, 1024, moving_loops.BLOCK + 5, 3 * moving_loops.BLOCK)


@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@np.errstate(all="ignore")
def test_they_equal_the_definition_of_a_sum_and_an_update_to_the_bit(
    monkeypatch: pytest.MonkeyPatch, dtype: str, kind: str, past: bool
) -> None:
    """Also where it is written past the cache, wherever lines of it begin."""
    if past:
        monkeypatch.setattr(cpu, "PAST_CACHE", 0)
    for seed, n in enumerate(SIZES):
        for count in (1, 2, 3, 4, 5, 9):
            w, v, *inputs = (make(dtype, n, kind, 20 * seed + i) for i in range(count + 2))
            scales = [SCALARS[i % len(SCALARS)] for i in range(count)]
            total = np.zeros(n, dtype)
            reference.scaled_sum(total, inputs, scales)
            for rate, beta, scale in ((0.1, 0.9, 0.25), (0.0, 0.0, 1.0)):
                kept = [x.tobytes() for x in (w, v, *inputs)]
                out, velocity = np.ones(n + count, dtype)[count:], np.ones(n + 1, dtype)[1:]
                moving.momentum(out, velocity, w, v, inputs, scales, rate, beta, scale)
                expected, its = w.copy(), v.copy()
                reference.momentum(expected, its, total, rate, beta, scale)
                np.testing.assert_array_equal(bits(out), bits(expected))
                np.testing.assert_array_equal(bits(velocity), bits(its))
                moving.sgd(out, w, inputs, scales, rate, scale)
                expected = w.copy()
                reference.sgd(expected, total, rate, scale)
                np.testing.assert_array_equal(bits(out), bits(expected))
                assert [x.tobytes() for x in (w, v, *inputs)] == kept
            square = np.abs(make(dtype, n, kind, 20 * seed + 19))
            for decay, scale in ((0.01, 0.25), (0.0, 1.0)):
                scalars = [0.1, 0.9, 0.999, 10.0, 31.6, 1e-8, decay, scale]
                outs = [np.ones(n + i + count, dtype)[i + count :] for i in range(3)]
                moving.adam(*outs, w, v, square, inputs, scales, *scalars)
                its = [w.copy(), v.copy(), square.copy()]
                reference.adam(*its, total, *scalars)
                for mine, expected in zip(outs, its, strict=True):
                    np.testing.assert_array_equal(bits(mine), bits(expected))


@pytest.mark.parametrize("n", [10, cpu.FEW])
def test_what_compiled_code_would_not_survive_is_refused(n: int) -> None:
    def x() -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        return np.zeros(n, np.float32)

    out, w, g = x(), x(), x()
    with pytest.raises(ValueError, match="one length"):
        moving.sgd(out, w, [g[:-1]], [1.0], 0.1, 1.0)
    with pytest.raises(TypeError, match="one dtype"):
        moving.sgd(out, w, [np.zeros(n)], [1.0], 0.1, 1.0)
    with pytest.raises(ValueError, match="no inputs"):
        moving.sgd(out, w, [], [], 0.1, 1.0)
    with pytest.raises(ValueError, match="each input needs one"):
        moving.sgd(out, w, [g], [1.0, 2.0], 0.1, 1.0)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        moving.sgd(out, w, [g], [1.0], 0.1, 1.0)
    both = np.zeros(n + 1, np.float32)
    for bad in ([both[1:], x(), both[:-1], x()], [x(), both[1:], x(), both[:-1]]):
        with pytest.raises(ValueError, match="overlaps"):
            moving.momentum(*bad, [g], [1.0], 0.1, 0.9, 1.0)
    for i in range(3):
        bad = [x() for _ in range(6)]
        bad[i], bad[5 - i] = both[1:], both[:-1]
        with pytest.raises(ValueError, match="overlaps"):
            moving.adam(*bad, [g], [1.0], *[0.1] * 8)
    with pytest.raises(ValueError, match="overlaps"):
        moving.momentum(both[1:], both[:-1], x(), x(), [g], [1.0], 0.1, 0.9, 1.0)
