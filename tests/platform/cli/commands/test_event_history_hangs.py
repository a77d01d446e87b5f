"""``events`` and ``why`` on a shared directory that hangs: an error in time, no endless wait. A pipe in the place of
an epoch's file hangs whoever opens it, as a dead network filesystem does.
"""

import os
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from ebbtide.cli.commands import event_history
from ebbtide.cli.main import cli
from ebbtide.ledger.epoch_log import EpochLog
from ebbtide.ledger.reader import epoch_path


@pytest.mark.parametrize("command", [["events"], ["why", "lm"]])
def test_a_directory_that_hangs_gives_an_error_in_time(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_history, "ANSWER_S", 0.3)
    monkeypatch.setenv("EBBTIDE_HOME", str(tmp_path / "home"))
    EpochLog.open(tmp_path / "ledger", writer="w").close()
    pipe = epoch_path(tmp_path / "ledger", 2)
    os.mkfifo(pipe)
    began_s = time.monotonic()
    try:
        ran = CliRunner().invoke(cli, [*command, "--shared-dir", str(tmp_path)])
        assert time.monotonic() - began_s < 10.0
        assert ran.exit_code == 1, ran.output
        assert "does not answer within 0.3 s" in ran.output and str(tmp_path) in ran.output
    finally:
        os.close(os.open(pipe, os.O_WRONLY))  # lets the thread that hangs go


def test_a_directory_without_a_ledger_is_bad_input(tmp_path: Path) -> None:
    ran = CliRunner().invoke(cli, ["events", "--shared-dir", str(tmp_path)])
    assert ran.exit_code == 2 and "there is no ledger" in ran.output
