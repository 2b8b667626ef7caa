"""GPUs that clouds rent: what is known of them, from where, and nothing that is guessed."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotmpi.economy.market import gpus
from spotmpi.errors import UsageError

SAMPLES = {  # a second, of the rows that the file names, in FP16
    "V100": (833, 189, 57),
    "A10": (638, 135, 42),
    "A100-40GB": (1396, 368, 117),
    "A100-80GB": (1582, 443, 152),
    "H100": (2616, 812, 301),
}


def test_speeds_are_what_was_measured_beside_the_named_one() -> None:
    known = gpus.shipped()
    assert known.relative_to == "V100"
    assert {name for name, gpu in known.gpus.items() if gpu.speed} == SAMPLES.keys()
    for name, samples in SAMPLES.items():
        told = known.gpus[name]
        expected = [one / base for one, base in zip(samples, SAMPLES["V100"], strict=True)]
        assert list(told.speed.values()) == pytest.approx(expected, abs=0.006)
        assert told.measured


def test_what_nobody_measured_is_said_and_not_guessed() -> None:
    known = gpus.shipped()
    assert known.described("g6.xlarge") == (
        "1 x L4, 24 GB each; its speed was measured by nobody that we know of"
    )
    assert known.described("p5.48xlarge") == (
        "8 x H100, 80 GB each; in times a V100: resnet50 3.14, bert_base 4.3, bert_large 5.28 "
        "(H100 80GB SXM5)"
    )
    assert known.described("m5.large") is None


def test_a_mistake_in_a_list_has_its_line(tmp_path: Path) -> None:
    file = tmp_path / "gpus.yaml"
    head = "as_of: 2026-11-23\nsource: x\nrelative_to: V\ntrainings: [r]\n"
    file.write_text(head + "gpus:\n  V: {memory_gb: 0}\ninstances: {}\n")
    with pytest.raises(UsageError, match=r"line 6: gpus.V.memory_gb is 0 GB, expected more"):
        gpus.read(file)
    file.write_text(head + "gpus: {V: {memory_gb: 9}}\ninstances: {a: {gpu: W, count: 1}}\n")
    with pytest.raises(UsageError, match=r"line 6: .*gpu is 'W', expected V"):
        gpus.read(file)
