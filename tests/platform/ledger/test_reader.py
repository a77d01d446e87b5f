"""Following a ledger as it grows."""

from pathlib import Path

from ebbtide.ledger.epoch_log import EpochLog
from ebbtide.ledger.reader import Follower, follow, list_epochs, replay


def test_an_empty_or_missing_directory_is_an_empty_ledger(tmp_path: Path) -> None:
    assert list(replay(tmp_path / "none")) == []
    (tmp_path / "epoch-1.log").write_bytes(b"stray")
    (tmp_path / "notes.txt").write_bytes(b"stray")
    assert list_epochs(tmp_path) == []
    assert list(replay(tmp_path)) == []


def test_a_follower_gets_each_record_once_across_epochs_and_batches(tmp_path: Path) -> None:
    follower = Follower(tmp_path, batch=3)
    seen: list[object] = []
    written: list[object] = []
    for epoch in range(1, 4):
        log = EpochLog.open(tmp_path, writer="w")
        for n in range(5):
            log.append([{"n": [epoch, n]}]).result(20)
            written.append([epoch, n])
            if n % 2:
                seen += [record.payload["n"] for record in follower.poll().records]
        log.close()
    while records := follower.poll().records:
        seen += [record.payload["n"] for record in records]
    assert seen == written
    assert [record.payload["n"] for record in replay(tmp_path)] == written


def test_follow_goes_on_with_what_is_appended_later(tmp_path: Path) -> None:
    log = EpochLog.open(tmp_path, writer="w")
    log.append([{"n": 0}]).result(20)
    naps = 0

    def append_instead_of_sleeping(_: float) -> None:
        nonlocal naps
        naps += 1
        log.append([{"n": naps}]).result(20)

    found = follow(tmp_path, stop=lambda: naps > 3, sleep=append_instead_of_sleeping)
    assert [record.payload["n"] for record in found] == [0, 1, 2, 3]
    log.close()
