"""The tables of docs/gpu.md say what the samples in bench/results say."""

from __future__ import annotations

from statistics import median

import pytest

from tests.docs import pages
from tests.docs.pages import DOCS
from tests.docs.test_figures import FLOATS, close, extremes, results, shown

PAGE = (DOCS / "gpu.md").read_text(encoding="utf-8")


def test_steps_are_those_measured() -> None:
    measured = {(cell["workers"], cell["params"]): cell for cell in results("gpu-step")["cells"]}
    for workers, floats, *said in pages.table(PAGE, "What it takes", 0):
        cell = measured.pop((int(workers), FLOATS[floats]))
        sides = ("bare", "gloo", "born", "staged_born")
        took = [1e3 * median(cell[f"{side}_s"]) for side in sides]
        assert close([shown(one)[0] for one in said], took)
    assert measured == {}, "not on the page"


def test_recoveries_are_those_measured() -> None:
    cells = results("gpu-recovery")["cells"]
    measured = {(cell["workers"], cell["params"]): cell for cell in cells}
    for workers, floats, *said in pages.table(PAGE, "What it takes", 1):
        cell = measured.pop((int(workers), FLOATS[floats]))
        for one, side in zip(said, ("spotmpi", "floor"), strict=True):
            totals = [sample["total"] for sample in cell[side]]
            assert len(totals) == 4
            assert close(shown(one), extremes(totals))
    assert measured == {}, "not on the page"


def test_what_it_says_of_kernels_was_measured() -> None:
    shares, times = {}, {}
    for cell in results("gpu-kernels")["cells"]:
        if cell["params"] == 25_600_000:
            ours = median(cell["spotmpi_s"])
            shares[cell["kernel"]] = median(cell["copy_s"]) / ours
            times[cell["kernel"]] = median(cell["cupy_s"]) / ours
    plain = ("accumulate", "blend", "exchange", "sgd", "momentum", "adam", "lamb")
    plain += tuple(f"scaled_sum of {count}" for count in (2, 4, 8))
    low, high = (round(100 * edge(shares[one] for one in plain)) for edge in (min, max))
    assert f"reach {low} to {high} % of a copy's bandwidth" in PAGE
    low, high = (round(edge(times[one] for one in plain), 2) for edge in (min, max))
    assert f"({low:.2f} to {high:.2f} times)" in PAGE
    assert f"(`narrow_sum`, {100 * shares['narrow_sum, fp16']:.0f} % of a copy)" in PAGE


@pytest.mark.parametrize(
    ("table", "name"),
    [
        *((0, "torch"), (1, "torch-ddp"), (2, "torch-gpu"), (3, "torch-ddp-gpu")),
        *((8, "torch-fsdp"), (9, "torch-hsdp")),
    ],
)
def test_steps_of_pytorch_are_those_measured(table: int, name: str) -> None:
    page = (DOCS / "pytorch.md").read_text(encoding="utf-8")
    measured = {(cell["workers"], cell["params"]): cell for cell in results(name)["cells"]}
    for workers, floats, *said in pages.table(page, "What it takes", table):
        cell = measured.pop((int(workers), FLOATS[floats]))
        peers = ("torchft",) if name in ("torch", "torch-ddp") else ()
        took = [1e3 * median(cell[f"{side}_s"]) for side in ("alone", "gloo", *peers, "spotmpi")]
        took.append(cell["times_gloo"][0])
        assert close([shown(one)[0] for one in said], took)
    assert measured == {}, "not on the page"


@pytest.mark.parametrize(
    ("table", "name", "jobs"), [(5, "calls", (2, 4, 8)), (7, "calls-groups", (4, 8))]
)
def test_calls_of_pytorch_are_those_measured(table: int, name: str, jobs: tuple[int, ...]) -> None:
    page = (DOCS / "pytorch.md").read_text(encoding="utf-8")
    measured = {(cell["call"], cell["workers"]): cell for cell in results(name)["cells"]}
    for call, *said in pages.table(page, "What it takes", table):
        for workers, took, of in zip(jobs, said[::2], said[1::2], strict=True):
            cell = measured.pop((call, workers))
            assert close([took, of], [1e3 * median(cell["spotmpi_s"]), cell["times_gloo"][0]])
    assert measured == {}, "not on the page"


def test_calls_between_hosts_are_those_measured() -> None:
    page = (DOCS / "pytorch.md").read_text(encoding="utf-8")
    measured = {cell["call"]: cell for cell in results("calls-hosts")["cells"]}
    for call, *said in pages.table(page, "What it takes", 6):
        cell = measured.pop(call)
        assert (cell["workers"], cell["hosts"]) == (4, 2)
        took = [1e3 * median(cell[f"{side}_s"]) for side in ("spotmpi", "gloo")]
        assert close(said, [*took, cell["times_gloo"][0]])
    assert measured == {}, "not on the page"


def test_losses_of_pytorch_are_those_measured() -> None:
    page = (DOCS / "pytorch.md").read_text(encoding="utf-8")
    measured = {cell["params"]: cell["spotmpi"] for cell in results("recovery-ddp")["cells"]}
    for floats, *said, beyond in pages.table(page, "What it takes", 4):
        samples = measured.pop(FLOATS[floats])
        assert len(samples) == 20
        totals = [sample["total"] for sample in samples]
        took = [median(sample["step"] for sample in samples), median(totals), max(totals)]
        assert close([shown(one)[0] for one in said], took)
        most = max(sample["dying"] + sample["stall"] for sample in samples)
        assert beyond.startswith("none") if most <= 0 else close(shown(beyond), [most])
    assert measured == {}, "not on the page"
