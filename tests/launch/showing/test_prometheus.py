"""What Prometheus reads: its own parser finds all figures, with what they are."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from spotmpi.launch.control_messages import SavedAt
from spotmpi.launch.showing.figures import Figures
from spotmpi.launch.showing.prometheus import KIND, page
from tests.launch.commands.test_status_table import status
from tests.launch.showing.test_figures import recovery, report, without
from tests.saying import said

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


def read(figures: Figures) -> dict[str, dict[tuple[str, ...], float]]:
    """All samples, by name and labels."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(page(figures)().decode()):
        for one in family.samples:
            found.setdefault(one.name, {})[tuple(one.labels.values())] = one.value
    return found


@pytest.fixture
def figures() -> Figures:
    """Of a job to which everything has happened."""
    made = Figures(dollars_an_hour=3.6)
    made.begins()
    known = {"loss": 0.25, "steps_in_all": 90, "samples": 640, "generation": 1}
    seen = report((4.0, 2.0, 0.5), (3.0, 3.0, 0.5), step=80, **known)
    made.look(replace(seen, checkpoint=SavedAt(70, "/x")), 0.0)
    made.noticed("h2", 120.0, 0.5)
    made.told(1, said("ended", status=9))
    made.told(0, recovery(1, 1))
    made.look(replace(without(seen, 1), checkpoint=SavedAt(70, "/x")), 10.0)
    return made


def test_all_figures_are_there(figures: Figures) -> None:
    found = read(figures)
    assert found["spotmpi_step"] == {(): 80}
    assert found["spotmpi_steps_in_all"] == {(): 90}
    assert found["spotmpi_loss"] == {(): 0.25}
    assert found["spotmpi_checkpoint_step"] == {(): 70}
    assert found["spotmpi_samples_total"] == {(): 640}
    assert found["spotmpi_samples_again_total"] == {(): 0}
    assert found["spotmpi_gradients_again_total"] == {(): 0}
    assert found["spotmpi_workers"] == {("training",): 1, ("revoked",): 1}
    assert found["spotmpi_worker_seconds_total"] == {
        ("computing",): 7,
        ("communicating",): 4,
        ("stalled",): 1,
    }
    assert found["spotmpi_recoveries_total"][("killed",)] == 1
    assert found["spotmpi_recovery_seconds_total"] == {(): pytest.approx(0.02)}
    assert found["spotmpi_notice_given_seconds_total"] == {(): 120}
    assert found["spotmpi_notice_used_seconds_total"] == {(): 9.5}
    assert found["spotmpi_present_seconds_total"] == {(): 10}
    assert found["spotmpi_goodput"] == {(): 0.7}
    assert found["spotmpi_dollars_total"] == {(): pytest.approx(0.01)}
    assert KIND.startswith("text/plain")


def test_before_the_first_step_what_is_not_known_is_not_there() -> None:
    figures = Figures()
    assert "spotmpi_step" not in read(figures)
    figures.begins()
    figures.look(status([]), 0.0)
    found = read(figures)
    assert {"spotmpi_step", "spotmpi_loss", "spotmpi_dollars_total"}.isdisjoint(found)
    assert found["spotmpi_workers"] == {("training",): 0}
    assert sum(found["spotmpi_recoveries_total"].values()) == 0


def test_the_page_lists_them_all(figures: Figures) -> None:
    told = set(re.findall(r"`(spotmpi_\w+)(?:\{\w+\})?`", PAGE.read_text(encoding="utf-8")))
    assert told == set(read(figures))
