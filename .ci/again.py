#!/usr/bin/env python3
"""Run what failed in CI once more: python .ci/again.py FAILURES

FAILURES: a file that tests/conftest.py writes. Only tests of real processes get a second try, and
no more than two: what fails without other processes fails by itself, and what fails often is
broken. Each runs alone, in a namespace of its own (.ci/alone). Exit code 0 if all pass then.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

MOST = 2
LIMIT = 600.0
"""Seconds for one test: it only ends a hang."""

failures = json.loads(Path(sys.argv[1]).read_text())
final = [one["test"] for one in failures if not one["processes"]]
if final:
    sys.exit(f"no second try: {final[0]} starts no process")
if not 0 < len(failures) <= MOST:
    sys.exit(f"no second try: {len(failures)} failed, not {MOST} at most")

alone = Path(sys.argv[0]).parent / "alone"
code = 0
for one in failures:
    command = ["bash", os.fspath(alone), "-m", "pytest", "-m", "not gpu", one["test"]]
    try:
        passed = subprocess.run(command, timeout=LIMIT, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        passed = False
    if passed:
        print(f"\nFLAKED {one['test']}\nIt passes alone. Find the cause (tests/FLAKES.md) of this:")
        print(one["output"])
    else:
        print(f"\nFAILED twice: {one['test']}")
        code = 1
sys.exit(code)
