"""Charts of a page: what they say, however narrow the screen is."""

from __future__ import annotations

import re

from spotmpi.afterwards.charts import Axis, Mark, chart


def flags(*marks: Mark) -> list[tuple[str, float, str]]:
    """Class, place (in hundredths of the width) and text of each label."""
    drawn = chart(Axis(0.0, 10.0), Axis(0.0, 1.0), [], "nothing", marks)
    found = re.findall(r'class="flag (\w*)" style="left:([\d.]+)%">([^<]*)<', drawn)
    return [(kind, float(at), text) for kind, at, text in found]


def test_labels_that_would_overlap_are_one() -> None:
    lost = [Mark(2.4, "-3", "loss"), Mark(2.0, "-1", "loss"), Mark(9.0, "-0", "loss")]
    assert flags(*lost) == [("loss", 22.0, "-1 -3"), ("loss", 90.0, "-0")]


def test_a_label_of_losses_and_joins_has_neither_s_colour() -> None:
    assert flags(Mark(2.0, "-1", "loss"), Mark(2.2, "+4", "change")) == [("", 21.0, "-1 +4")]


def test_marks_without_a_label_leave_no_trace_above_the_chart() -> None:
    assert flags(Mark(2.0, "", "loss"), Mark(2.1, "-1", "loss")) == [("loss", 21.0, "-1")]
