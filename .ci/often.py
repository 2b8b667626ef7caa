#!/usr/bin/env python3
"""Run .ci/run again and again, and keep a list: python .ci/often.py [--runs N] [--burners N]

Each run has a fresh clone of what is committed. `--burners`: processes that compute beside it, all
the time. A run is a line in bench/results/ci-runs.jsonl. The first one that fails is the last one:
its output is shown.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "bench" / "results" / "ci-runs.jsonl"


def git(*words: str) -> str:
    """What it says."""
    done = subprocess.run(["git", "-C", ROOT, *words], check=True, stdout=subprocess.PIPE)
    return done.stdout.decode().strip()


def run(burners: int) -> tuple[dict[str, object], str]:
    """One run: its line, and all that it wrote."""
    with tempfile.TemporaryDirectory(prefix="ci-") as folder:
        git("clone", "-q", "--no-hardlinks", str(ROOT), f"{folder}/project")
        if (shared := ROOT.parent / "shared").exists():
            shutil.copytree(shared, Path(folder, "shared"))
        load, began = os.getloadavg()[0], time.monotonic()
        beside = [
            subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(burners)
        ]
        try:
            done = subprocess.run(
                ["bash", ".ci/run"],
                cwd=f"{folder}/project",
                env=os.environ | {"CI": "true"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                check=False,
            )
        finally:
            for one in beside:
                one.kill()
                one.wait()
    said = done.stdout.decode(errors="replace")
    counts = re.search(r"(\d+) passed.* in ([\d.]+)s", said)
    line = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": git("rev-parse", "--short=12", "HEAD"),
        "code": done.returncode,
        "passed": int(counts[1]) if counts else None,
        "flaked": sorted(set(re.findall(r"^FLAKED (\S.*)$", said, re.MULTILINE))),
        "seconds": round(time.monotonic() - began),
        "seconds_of_tests": round(float(counts[2])) if counts else None,
        "burners": burners,
        "load_before": round(load, 1),
        "load_after": round(os.getloadavg()[0], 1),
        "cores": os.cpu_count(),
    }
    return line, said


parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--runs", type=int, default=1)
parser.add_argument("--burners", type=int, default=0)
given = parser.parse_args()
for _ in range(given.runs):
    line, said = run(given.burners)
    with LIST.open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(json.dumps(line), flush=True)
    if line["code"] != 0 or line["flaked"]:
        Path(git("rev-parse", "--absolute-git-dir"), "often.log").write_text(said)
    if line["code"] != 0:
        print(said[-20_000:])
        sys.exit(1)
