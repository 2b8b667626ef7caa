"""How long hosts may be silent in tests: options of ``spotmpi run``, of which the last counts.

No test's verdict depends on how busy these cores are: who lives is never lost here.
"""

from __future__ import annotations

__all__ = ["FOUND_SILENT", "FOUND_SILENT_S", "NEVER_SILENT", "NEVER_SILENT_MS"]

NEVER_SILENT_MS = 600_000

NEVER_SILENT = ("--detect-ms", str(NEVER_SILENT_MS))
"""For tests in which no host falls silent. One that dies with its connections is lost at once all
the same."""

FOUND_SILENT_S = 3.0
"""Seconds: many times the longest silence that a busy machine has ever had."""

FOUND_SILENT = ("--detect-ms", f"{1e3 * FOUND_SILENT_S:.0f}")
"""For tests in which a host is made silent, for as long as it takes or for longer than this."""
