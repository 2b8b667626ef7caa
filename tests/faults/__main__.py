"""Plant faults, and see which tests find them."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from tests.faults.hunt import compared, hunt, table
from tests.faults.planted import FAULTS

ROOT = Path(__file__).resolve().parent.parent.parent
TESTS = [
    *(f"tests/{folder}" for folder in ("training", "rounds", "fabric", "simulation", "chaos")),
    *sorted(f"tests/{path.name}" for path in ROOT.glob("tests/test_*.py")),
]

parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
parser.add_argument("names", nargs="*", metavar="NAME", help="of a fault; without one, all")
parser.add_argument("--of", choices=sorted({fault.of for fault in FAULTS}), help="only these")
parser.add_argument("--tests", nargs="+", metavar="PATH", default=TESTS, help="what pytest runs")
parser.add_argument("--marks", metavar="EXPRESSION", help="as pytest's -m")
parser.add_argument("--first", action="store_true", help="end a run with the first failed test")
parser.add_argument("--limit", type=float, default=900.0, metavar="SECONDS", help="of one run")
parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at a time")
parser.add_argument("--json", type=Path, metavar="FILE", help="where to write what came of it")
given = parser.parse_args()
if unknown := set(given.names) - {fault.name for fault in FAULTS}:
    parser.error(f"no fault is called {', '.join(sorted(unknown))}")
faults = [
    fault
    for fault in FAULTS
    if fault.name in (given.names or [fault.name]) and fault.of == (given.of or fault.of)
]
git = ["git", "-C", str(ROOT), "ls-files", "-z"]
listed = subprocess.run(git, check=True, stdout=subprocess.PIPE, text=True).stdout
marks = [] if given.marks is None else ["-m", given.marks]
signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that nothing is left behind
files, pytest = listed.split("\0")[:-1], [*["-x"] * given.first, *marks, *given.tests]
runs = hunt(ROOT, files, faults, pytest, given.limit, given.jobs, partial(print, flush=True))
known = compared(faults, runs)
if given.first:  # what comes after the first one was not asked
    del known["modules"], known["vain"]
print(f"\n{table(known)}")
if given.json is not None:
    head = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": subprocess.check_output([*git[:3], "rev-parse", "HEAD"], text=True).strip(),
        "python": sys.version.split()[0],
        "cores": os.cpu_count(),
        "first": given.first,
    }
    given.json.write_text(json.dumps(head | known, indent=1) + "\n")
sys.exit(bool(known["missed"]))
