"""The GPU's kernels on a GPU: what tests/kernels/test_gpu.py runs on the CPU, and large arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spotmpi.kernels import gpu, reference
from tests.kernels import adaptive, test_cpu, test_gpu
from tests.kernels.test_gpu import (  # noqa: F401 -- collected here as well
    _blocks,
    _numpy_says_nothing_about_overflow,
    test_a_sum_of_any_number_of_inputs_is_added_from_left_to_right,
    test_a_sum_of_negative_zeros_stays_negative,
    test_arrays_that_do_not_fit_each_other_are_refused,
    test_every_kernel_equals_the_reference_to_the_bit,
    test_every_sixteen_bits_are_widened_as_the_reference_does_it,
    test_moments_and_sums_of_squares_equal_the_reference_to_the_bit,
    test_one_broken_element_anywhere_is_found,
    test_sums_are_narrowed_to_the_same_bits,
    test_tensors_of_any_shape_are_packed_and_unpacked,
)


@pytest.fixture(autouse=True)
def _device(monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    monkeypatch.setattr(test_gpu, "cupy", cupy)


@pytest.mark.parametrize("dtype", test_cpu.DTYPES)
def test_large_arrays_have_the_reference_s_bits(dtype: str) -> None:
    """Larger than all threads that run at once."""
    size = 3_000_017
    x = [test_cpu.make(dtype, size, "broken", seed) for seed in range(4)]
    with np.errstate(all="ignore"):
        test_gpu.compare(lambda k, a: k.scaled_sum(a[0], a[1:], [0.3, 1.0, 7.0]), x)
        test_gpu.compare(lambda k, a: k.momentum(a[0], a[1], a[2], 0.1, 0.9, 0.5), x[:3])
        for call in adaptive.calls():
            test_gpu.compare(call, [x[0], x[1], np.abs(x[2]), x[3]])
    device: Any = test_gpu.onto(x[0], 1)
    assert gpu.digest(device) == reference.digest(x[0])
