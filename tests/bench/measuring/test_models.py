"""The parameters of known models: as many as they are known for."""

from __future__ import annotations

import pytest

from spotmpi.bench.measuring.models import MODELS

KNOWN = {
    "resnet50": (214, 25_583_592, 3.86e9),
    "vgg16": (32, 138_357_544, 15.5e9),
    "inception-v3": (190, 23_817_352, 5.71e9),
    "bert-base": (199, 109_482_240, 85.5e6),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_as_many_parameters_and_multiplications_as_it_is_known_for(name: str) -> None:
    arrays = MODELS[name]()
    count, params, work = KNOWN[name]
    assert (len(arrays), sum(array.size for array in arrays)) == (count, params)
    assert sum(array.work for array in arrays) == pytest.approx(work, rel=3e-3)


def test_arrays_come_in_the_order_of_the_forward_pass() -> None:
    resnet50 = MODELS["resnet50"]()
    assert (resnet50[0].shape, resnet50[-2].shape) == ((7, 7, 3, 64), (2048, 1000))
    assert max(array.size for array in MODELS["vgg16"]()) == 102_760_448
