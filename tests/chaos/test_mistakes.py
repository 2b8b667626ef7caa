"""A mistake in a script is no revocation: the job ends at once, and says what to do."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("mistake", "told"),
    [
        pytest.param(
            "raise",
            "ValueError: a bug of worker 1",
            marks=pytest.mark.promise("a mistake of a script"),
        ),
        ("everybody", "ValueError: a bug of all workers"),
        ("shape", 'grads["w"] is of shape (5, 2), expected a float32 array of shape (5,)'),
        ("dtype", 'grads["w"] is float64, expected a float32 array'),
        ("no-array", 'grads["b"] is a list'),
        ("missing", 'grads["b"] is missing'),
        ("nan", 'worker 1, step 5: the gradient of grads["w"] holds NaN or infinity'),
        pytest.param(
            "break",
            "worker 1 left the training loop",
            marks=pytest.mark.promise("a worker that leaves the loop"),
        ),
        ("mean", "have come to different calls"),
        ("twice", "worker 1: trainer.step() was called again, in step 6, for a batch that is used"),
        ("skip", "the batch of step 5 was not used"),
        ("exit", "worker 1 on"),
        ("network", "known error not in list: this is no revocation"),
        ("write", "read-only"),
        ("other-shape", "differ in the names, shapes or dtypes of the parameters"),
    ],
)
def test_the_job_ends_with_one_clear_sentence(run_spotmpi, tmp_path, mistake, told) -> None:
    """Code 1, the traceback once, nobody recovers, nobody hangs."""
    trace = tmp_path / "trace.jsonl"
    done = run_spotmpi(
        ["run", "-n", "3", "--trace", trace, HERE / "mistakes.py", mistake], timeout=60
    )
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    assert told in said
    causes = mistake == "network"  # MPI's error, and ours from it, told by one worker
    assert said.count("Traceback (most recent call last)") <= 1 + causes
    # What is wrong in the script is shown there, and not where we found out.
    assert ("spotmpi/training/" in said) is (mistake == "network")
    assert '"recovery"' not in trace.read_text(), "a bug was taken for a revocation"
