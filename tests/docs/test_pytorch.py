"""What docs/pytorch.md says of killed trainings is what the samples in bench/results say."""

from __future__ import annotations

from statistics import median

from spotmpi.bench.pytorch import curves
from tests.docs import pages
from tests.docs.pages import DOCS
from tests.docs.test_figures import results


def test_how_killed_trainings_learn_is_what_was_measured() -> None:
    page = (DOCS / "pytorch.md").read_text(encoding="utf-8")
    said = pages.table(page, "How a killed training learns")
    measured = curves.by_way(results("curves")["cells"])
    unharmed = measured[curves.ways([])[0]]
    for way, cells in measured.items():
        used, losses = zip(*(cell["curve"][-1] for cell in cells), strict=True)
        row = [str(way), f"{median(used):,.0f}"]
        row.append(f"{median(losses):.3f} ({min(losses):.3f} to {max(losses):.3f})")
        if way.lost:
            higher = [curves.above(cell, unharmed) for cell in cells]
            for some in zip(*higher, strict=True):
                row.append(f"{sum(one > 0 for one in some)} of {len(some)}, by {max(some):.3f}")
        else:
            row += ["", ""]
        said.remove(row)
    assert said == [], "not measured"
