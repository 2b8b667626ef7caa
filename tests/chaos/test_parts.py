"""Parts of DiLoCo with a delay under real MPI: workers die after they have sent theirs."""

from __future__ import annotations

import pytest

from tests.chaos.test_revocations import in_shared_memory, run  # noqa: F401 - a fixture

STREAMED = "diloco:h=8,outer=0.5,momentum=0.5,fragments=2,delay=2,mix=0.5"


@in_shared_memory
@pytest.mark.promise("diloco with a delay with deaths")
@pytest.mark.first("7-Node")
@pytest.mark.parametrize("step", [5, 6, 7, 8])
def test_samples_after_a_part_that_was_sent_are_dealt_again(run, step) -> None:  # noqa: F811
    """Parts are sent with steps 1, 5 and 9, and their rounds end with steps 3, 7 and 11."""
    job = run(4, "--strategy", STREAMED, "--revoke", f"1@{step}", "--revoke", f"0@{step + 8}")
    job.check(STREAMED)
    assert job.survivors == {2, 3}
    *_, last = [one["step"] for one in job.of("step") if 1 in one["workers"]]
    # Whether a part that was sent counts is a matter of who waits for whom.
    assert last in {5: [3], 6: [3, 7], 7: [3, 7], 8: [7]}[step]
