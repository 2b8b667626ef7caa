"""One share of a campaign, in a process of its own: ``python -m spotmpi.simulation.share``.

A line of JSON for each schedule, in the order of their numbers: its outcome, or null where it
breaks a promise, which ends the share.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections.abc import Callable
from dataclasses import astuple

from spotmpi.launch.processes import die_with_parent
from spotmpi.simulation.schedules import Campaign
from spotmpi.simulation.search import Outcome, search

__all__ = ["spread"]


def spread(
    campaign: Campaign, runs: int, jobs: int, tell: Callable[[int, Outcome], None]
) -> int | None:
    """As `search` does with all numbers below ``runs``, in ``jobs`` processes at once.

    Of several schedules that fail the first one counts. Blocking; leaves no process behind.
    """
    if jobs == 1:
        return search(campaign, range(runs), tell)
    shares = [_start(campaign, runs, first, jobs) for first in range(jobs)]
    try:
        return _collect(shares, tell)
    finally:
        for share in shares:
            share.kill()
            share.communicate()


def _start(campaign: Campaign, runs: int, first: int, jobs: int) -> subprocess.Popen[bytes]:
    losses = -1 if campaign.losses is None else campaign.losses
    drawn_from = campaign.least, campaign.most, campaign.seed, losses, int(campaign.changing)
    numbers = *drawn_from, first, runs, jobs, os.getpid()
    drawn = "|".join(campaign.strategies)
    command = [sys.executable, "-m", __name__, *map(str, numbers), drawn]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)


def _collect(
    shares: list[subprocess.Popen[bytes]], tell: Callable[[int, Outcome], None]
) -> int | None:
    failing: int | None = None
    with selectors.DefaultSelector() as running:  # select() would refuse descriptors above 1023
        for share in shares:
            assert share.stdout is not None
            running.register(share.stdout, selectors.EVENT_READ, [b""])
        while running.get_map():
            for key, _ in running.select():
                said = os.read(key.fd, 1 << 16)
                *lines, key.data[0] = (key.data[0] + said).split(b"\n")
                for number, outcome in map(json.loads, lines):
                    if outcome is not None:
                        tell(number, Outcome(*outcome))
                    elif failing is None or number < failing:
                        failing = number
                    if failing is not None and number >= failing:
                        said = b""  # it can find no earlier one
                if not said:
                    running.unregister(key.fileobj)
    for share in shares:
        if failing is None and share.wait():
            raise RuntimeError(f"a process of the campaign ended with code {share.returncode}")
    return failing


def main(arguments: list[str]) -> None:
    """Run every so-manieth schedule and say how it went."""
    *numbers, strategies = arguments
    least, most, seed, losses, changing, first, runs, jobs, parent = map(int, numbers)
    die_with_parent(parent)
    drawn = tuple(strategies.split("|"))
    campaign = Campaign(least, most, seed, None if losses < 0 else losses, drawn, bool(changing))

    def tell(number: int, outcome: Outcome) -> None:
        print(json.dumps([number, astuple(outcome)]), flush=True)

    failing = search(campaign, range(first, runs, jobs), tell)
    if failing is not None:
        print(json.dumps([failing, None]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
