"""The way to the ledger: one attempt at a time, no other ledger than the one that is known, and nothing left behind."""

import asyncio
import errno
import json
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from ebbtide.ledger.epoch_log import EpochLog
from ebbtide.ledger.errors import LedgerUnusable
from ebbtide.ledger.reader import list_epochs
from ebbtide_autoscaler.journal import ledger_io, ledger_session
from ebbtide_autoscaler.journal.halt import Halt
from ebbtide_autoscaler.journal.ledger_io import LedgerIO, OpenLedger
from ebbtide_autoscaler.journal.ledger_session import LedgerSession
from ebbtide_autoscaler.journal.records import Journal, Recovered

WAIT_S = 60.0


def a_door(shared: Path, memory: Path, *, cluster: str = "one") -> LedgerIO:
    return LedgerIO(shared, memory=memory, cluster=cluster, open_log=partial(EpochLog.open, writer="w"))


async def opened(door: LedgerIO) -> OpenLedger:
    found = await asyncio.wait_for(door.open(lambda late_s: None), WAIT_S)
    found.journal.close()
    return found


@pytest.mark.proves("one attempt to open the ledger at a time")
async def test_while_an_attempt_hangs_no_other_is_begun_and_when_it_is_through_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_io, "PATIENCE_S", 0.05)
    begun, released = [], threading.Event()

    def slow(directory: Path, *, expects: str) -> EpochLog:
        begun.append(directory)
        assert released.wait(WAIT_S)
        return EpochLog.open(directory, writer="w", expects=expects)

    door = LedgerIO(tmp_path / "shared", memory=tmp_path / "m" / "ledger.json", cluster="one", open_log=slow)
    late: list[float] = []
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(door.open(late.append), 0.2)
    assert len(begun) == 1 and len(late) >= 3
    released.set()
    assert (await opened(door)).epoch == 1
    assert list_epochs(tmp_path / "shared" / "ledger") == [1]


@pytest.mark.proves("a pause between tries to open the ledger")
async def test_a_ledger_that_cannot_be_opened_is_tried_again_after_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_session, "REOPEN_S", 0.1)
    tried_s: list[float] = []

    async def fails(_late: object) -> OpenLedger:
        tried_s.append(time.monotonic())
        raise OSError(errno.EIO, "it is broken")

    door = a_door(tmp_path / "shared", tmp_path / "m" / "ledger.json")
    monkeypatch.setattr(door, "open", fails)
    keeper = LedgerSession(door, tmp_path, Halt(), lambda _: None)
    await asyncio.wait_for(keeper.open_first(lambda: len(tried_s) == 3), WAIT_S)
    assert not keeper.opened and tried_s[2] - tried_s[0] > 0.15


@pytest.mark.proves("an arbiter remembers its ledger")
@pytest.mark.parametrize("cluster", ["one", ""], ids=["remembered by the cluster", "known to this arbiter alone"])
async def test_the_ledger_that_was_known_is_never_begun_anew(tmp_path: Path, cluster: str) -> None:
    door = a_door(tmp_path / "shared", tmp_path / "m" / "ledger.json", cluster=cluster)
    await opened(door)
    (tmp_path / "shared").rename(tmp_path / "elsewhere")
    (tmp_path / "m").rename(tmp_path / "forgotten")  # an arbiter that lives knows it by itself
    with pytest.raises(LedgerUnusable, match="holds no ledger"):
        await opened(door)
    assert list_epochs(tmp_path / "shared" / "ledger") == []
    if (tmp_path / "shared").exists():
        (tmp_path / "shared").rename(tmp_path / "empty")
    (tmp_path / "elsewhere").rename(tmp_path / "shared")
    assert (await opened(door)).epoch == 2


@pytest.mark.proves("one cluster's memory is not another's", "the cluster remembers its ledger")
async def test_a_cluster_remembers_its_ledger_and_not_that_of_another(tmp_path: Path) -> None:
    memory = tmp_path / "m" / "ledger.json"
    await opened(a_door(tmp_path / "shared", memory))
    with pytest.raises(LedgerUnusable, match="holds no ledger"):
        await opened(a_door(tmp_path / "other", memory))
    await opened(a_door(tmp_path / "third", memory, cluster="two"))
    memory.write_text("{")
    await opened(a_door(tmp_path / "fourth", memory))


@pytest.mark.proves("the memory of the ledger is replaced whole")
async def test_a_crash_while_the_ledger_is_remembered_leaves_the_memory_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = tmp_path / "m" / "ledger.json"
    first = await opened(a_door(tmp_path / "shared", memory))

    def full(self: Path, text: str) -> int:
        self.write_bytes(text.encode()[: len(text) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space"):
        await opened(a_door(tmp_path / "shared", memory))
    assert json.loads(memory.read_text()) == {"cluster": "one", "ledger": first.ledger}


@pytest.mark.proves("a ledger that cannot be read is closed again")
async def test_a_ledger_that_cannot_be_taken_over_is_closed_again(tmp_path: Path) -> None:
    log = EpochLog.open(tmp_path / "shared" / "ledger", writer="w")
    journal = Journal(log, Recovered())
    journal.write((), extra=[{"type": "config", "at_s": 1.0, "config": "{}"}]).result(WAIT_S)
    journal.close()
    door = a_door(tmp_path / "shared", tmp_path / "m" / "ledger.json")
    before = threading.enumerate()
    for _ in range(3):
        with pytest.raises(ValueError, match="pool"):
            await opened(door)
    left = [one for one in threading.enumerate() if one not in before and one.name != "ledger-door"]
    assert left == [], "a thread that writes to a file of its own"


@pytest.mark.proves("the internal token is its owner's")
async def test_the_internal_token_is_made_once_and_for_its_owner_only(tmp_path: Path) -> None:
    door = a_door(tmp_path / "shared", tmp_path / "m" / "ledger.json")
    token = (await opened(door)).token
    assert len(token) >= 32 and (await opened(door)).token == token
    assert (tmp_path / "shared" / "internal-token").stat().st_mode & 0o077 == 0
