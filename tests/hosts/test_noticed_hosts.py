"""Hosts that are taken away after a word of warning, over ssh."""

from __future__ import annotations

import os
import signal

import pytest


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_host_s_notice_reaches_the_user_before_the_host_goes(
    train, number: signal.Signals
) -> None:
    training = train(2, "--notice", "auto", slots=2).until_step(20)
    (agent,) = training.network.processes("h2", "--pipe")
    os.kill(agent, number)
    training.job.until(rf"^spotmpi: host h2 is to be taken away soon \({number.name}\)$")
    training.network.kill("h2")
    training.check(0, 1)
    assert "worker 2 on h2 was revoked (host h2 was lost" in training.job.output
