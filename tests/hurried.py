"""``spotmpi run`` whose limits are over soon: ``python -m tests.hurried run [OPTIONS] SCRIPT ..``.

For tests in which somebody is silent, or MPI hangs, until a limit is over. They are long enough for
busy cores; agents are told theirs by this head.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser

from spotmpi.launch.commands import run
from spotmpi.launch.limits import Limits

LIMITS = Limits(fence=5.0, question=0.5, answer=5.0, spawn=8.0, reader=2.0)

if __name__ == "__main__":
    parser = ArgumentParser()
    run.add_arguments(parser.add_subparsers(required=True).add_parser("run"))
    sys.exit(run.main(parser.parse_args(), LIMITS))
