"""What scripts say of their work is on the launcher's board for as long as it is true."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import spotmpi
from spotmpi.errors import UsageError
from spotmpi.launcher_channel import BOARDS, Busy, LauncherChannel, busy
from spotmpi.optimizers import SGD
from spotmpi.settings import Settings
from spotmpi.strategies import SSGD
from spotmpi.training.busy import BusyBlock
from tests.simulated import params


@pytest.fixture
def channel(tmp_path: Path) -> LauncherChannel:
    for board in BOARDS:
        (tmp_path / board).touch()
    return LauncherChannel(None, tmp_path, None, busy=busy(tmp_path, writing=True))


def test_a_block_is_on_the_board_while_it_lasts(channel: LauncherChannel, tmp_path: Path) -> None:
    board = busy(tmp_path)
    assert board.read(2) is None
    with BusyBlock(channel, 2, "evaluating") as outer:
        assert board.read(2) == Busy(True, 0, b"evaluating")
        outer.beat()
        outer.beat()
        assert board.read(2) == Busy(True, 2, b"evaluating")
        with BusyBlock(channel, 2, "drawing " + "\u00e9" * 60):
            said = board.read(2)
            assert said is not None
            assert (said.on, said.beats, len(said.what)) == (True, 0, 64)
        assert board.read(2) == Busy(True, 2, b"evaluating")
    assert board.read(2) == Busy()
    outer.beat()  # too late, by a thread of the script's
    assert board.read(2) == Busy()
    board.close()


def test_it_is_over_when_the_script_raises(channel: LauncherChannel, tmp_path: Path) -> None:
    board = busy(tmp_path)
    with pytest.raises(ZeroDivisionError), BusyBlock(channel, 0, "dividing"):
        1 / 0  # noqa: B018
    assert board.read(0) == Busy()
    board.close()


@pytest.mark.parametrize("what", ["", None, 3])
def test_who_is_busy_says_with_what(channel: LauncherChannel, what: Any) -> None:
    with pytest.raises(UsageError, match=r"busy\(\) needs a word"):
        BusyBlock(channel, 2, what)


def test_without_a_launcher_it_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with BusyBlock(LauncherChannel.open(Settings()), 0, "evaluating") as block:
        block.beat()
    monkeypatch.delenv("OMPI_COMM_WORLD_SIZE", raising=False)
    trainer = spotmpi.Trainer(params(0), optimizer=SGD(lr=0.1), strategy=SSGD())
    with trainer, trainer.busy("evaluating") as block:
        block.beat()
    with pytest.raises(UsageError, match=r"trainer\.busy\(\) belongs inside"):
        trainer.busy("evaluating")
