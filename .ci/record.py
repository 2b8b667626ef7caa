#!/usr/bin/env python3
"""Print a line for bench/results/matrix.jsonl: python .ci/record.py LOG SECONDS

LOG is what pytest printed; its last line counts the tests.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

counted = Path(sys.argv[1]).read_text().splitlines()[-1]
counts = {what: int(number) for number, what in re.findall(r"(\d+) (passed|failed|error)", counted)}
failed = counts.get("failed", 0) + counts.get("error", 0)
commit = subprocess.run(
    ["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False
).stdout.strip()
line = {
    "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    "commit": commit or None,
    "tests": counts.get("passed", 0) + failed,
    "failures": failed,
    "seconds": int(sys.argv[2]),
    "load": os.getloadavg()[2],
    "cores": os.cpu_count(),
}
print(json.dumps(line))
