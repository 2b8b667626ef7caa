"""spotDNN's tables and figures, as its formulas and searches give them here."""

from __future__ import annotations

import pytest

from spotmpi.bench.papers import spotdnn_rows
from spotmpi.bench.papers.comparison import Row


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return list(spotdnn_rows.compare().rows)


def of(rows: list[Row], where: str) -> list[Row]:
    return [row for row in rows if row.where == where]


def test_times_and_costs_of_table_1_come_out(rows: list[Row]) -> None:
    figures = [row for row in of(rows, "Table I") if row.unit]
    assert len(figures) == 8
    assert all(abs(row.error or 1) < 0.005 or row.error == 0 for row in figures)


def test_both_searches_find_the_published_plans(rows: list[Row]) -> None:
    plans = [row for row in rows if isinstance(row.paper, str)]
    assert len(plans) == 9
    other = [row for row in plans if row.model != row.paper]
    # Cheaper than the published one, and in time: only the last window of Table V.
    assert [(row.what, row.model) for row in other] == [
        ("plan to loss 0.7 in 3700 s: windows (spotDNN)", "p3.2xl:2,g3.8xl:4")
    ]


def test_how_uneven_a_cluster_is_comes_out_but_for_one_misprint(rows: list[Row]) -> None:
    uneven = [*of(rows, "Fig. 3(b)"), *of(rows, "Table VI")]
    assert len(uneven) == 10
    far = [row for row in uneven if abs(row.error or 0) > 0.01]
    assert [(row.what, row.paper) for row in far] == [("R, 1 g3.8xl 2 g3.16xl", 0.59)]
    assert "no speeds of three workers give less than 0.71" in far[0].note


def test_the_loss_of_five_nodes_at_once_ends_when_it_did(rows: list[Row]) -> None:
    loss, plan, end = of(rows, "Fig. 9")
    assert loss.model == pytest.approx(0.949, abs=5e-4)
    assert plan.model == plan.paper == "p3.2xl:3,g3.16xl:3"
    assert end.model == pytest.approx(41.9, rel=0.01)
