"""``python -m spotmpi`` is the same as ``spotmpi``."""

from __future__ import annotations

import sys

from spotmpi.cli import main

if __name__ == "__main__":
    sys.exit(main())
