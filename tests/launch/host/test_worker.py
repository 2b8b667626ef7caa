"""The traceback that users get is that of their own code."""

from __future__ import annotations

import os
import runpy
import warnings
from pathlib import Path
from typing import Any

import pytest

from spotmpi.errors import ScriptError, UsageError
from spotmpi.launch.host import worker
from spotmpi.launcher_channel import LauncherChannel
from spotmpi.trace.records import Trace


def raised(script: Path, text: str) -> BaseException:
    script.write_text(text)
    with pytest.raises(BaseException) as caught:
        runpy.run_path(str(script), run_name="__main__")
    error = caught.value
    # What stands above runpy's frames is this test.
    assert error.__traceback__ is not None
    return error.with_traceback(error.__traceback__.tb_next)


def test_only_the_scripts_frames_are_shown(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    text = worker.describe(raised(script, "def f():\n    raise ValueError('x')\nf()\n"))
    assert text.splitlines()[:2] == [
        "Traceback (most recent call last):",
        f'  File "{script}", line 3, in <module>',
    ]
    assert text.endswith("ValueError: x\n")
    assert "runpy" not in text


def test_a_syntax_error_shows_its_line(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    text = worker.describe(raised(script, "ok = 1\n1 +\n"))
    assert f'File "{script}", line 2' in text
    assert "runpy" not in text


def test_a_wrong_call_ends_where_the_user_called(tmp_path: Path) -> None:
    error = raised(
        tmp_path / "script.py",
        "from spotmpi.settings import parse_revocation\nparse_revocation('nonsense')\n",
    )
    assert isinstance(error, UsageError)
    text = worker.describe(error)
    assert "parse_revocation('nonsense')" in text
    assert "settings.py" not in text


def test_what_is_wrong_with_the_others_ends_where_the_script_called(tmp_path: Path) -> None:
    """One left the loop: what the others met is nothing that happened inside of spotmpi."""
    error = raised(
        tmp_path / "script.py",
        "from spotmpi.protocol.control_word import STEP, ControlSum\n"
        "ControlSum([0.0] * 64, 2).check_kind(STEP, 3)\n",
    )
    assert isinstance(error, ScriptError)
    text = worker.describe(error)
    assert "check_kind(STEP, 3)" in text
    assert "control_word.py" not in text


class Told(LauncherChannel):
    """Notes what would be told."""

    def __init__(self) -> None:
        super().__init__(None, Path(), None)
        self.events: list[tuple[str, Any]] = []

    def tell(self, event: str, **fields: Any) -> None:
        self.events.append((event, fields))


def test_what_spotmpi_warns_of_goes_to_the_launcher_and_a_scripts_own_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel, shown = Told(), []
    trace = Trace(tmp_path / "trace")
    os.close(trace._fd)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", lambda *said: shown.append(str(said[0])))
        worker.tell_warnings(channel)
        warnings.warn("mine", RuntimeWarning, stacklevel=1)
        monkeypatch.setattr(trace, "close", lambda: None)
        trace.write("step", step=1)
    ((event, fields),) = channel.events
    assert event == "says"
    assert fields["text"].startswith(f"the trace {tmp_path}/trace ends here for this worker")
    assert shown == ["mine"]


def test_the_cause_of_an_exception_is_shown(tmp_path: Path) -> None:
    error = raised(
        tmp_path / "script.py",
        "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise ValueError('x') from e\n",
    )
    text = worker.describe(error)
    assert text.index("ZeroDivisionError") < text.index("ValueError")
