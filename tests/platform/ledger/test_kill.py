"""Writers killed at random moments. EBBTIDE_KILLS sets how many (default 100), EBBTIDE_SEED another seed."""

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from ebbtide.ledger.reader import list_epochs, replay, survey
from ebbtide.ledger.sqlite_index import LedgerIndex
from tests.platform.ledger.kill_writer import counted, pad

KILLS = int(os.environ.get("EBBTIDE_KILLS", "100"))
SEED = int(os.environ.get("EBBTIDE_SEED", "1"))


def kill(directory: Path, *more: str) -> dict[int, int]:
    """Run the writers; what each saw acknowledged."""
    program = Path(__file__).with_name("kill_writer.py")
    ran = subprocess.run(
        [sys.executable, str(program), str(directory), str(KILLS), str(SEED), *more],
        capture_output=True,
        text=True,
        timeout=60 + KILLS,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    acked = {one["round"]: one["acked"] for one in map(json.loads, ran.stdout.splitlines())}
    assert len(acked) == KILLS
    return acked


def test_writers_killed_while_they_go_over_to_snapshots_lose_nothing_and_count_nothing_twice(tmp_path: Path) -> None:
    acked = kill(tmp_path / "ledger", "rolls")
    counts = counted(tmp_path / "ledger")
    for number, count in acked.items():
        assert counts.get(number, 0) >= count, f"acknowledged records are gone in round {number}, seed {SEED}"
    assert sum(1 for count in acked.values() if count) > KILLS / 4, "too few writers lived long enough to tell anything"
    view = survey(tmp_path / "ledger")
    assert view.first > KILLS / 10, "the writers were meant to make snapshots, and to remove what is older"
    assert len(list_epochs(tmp_path / "ledger")) < KILLS / 2


def test_every_acknowledged_record_survives_kill_9_and_no_half_record_does(tmp_path: Path) -> None:
    acked = kill(tmp_path / "ledger")

    found = list(replay(tmp_path / "ledger"))
    numbers: dict[int, list[int]] = defaultdict(list)
    for record in found:
        number, n = record.payload["round"], record.payload["n"]
        assert isinstance(number, int) and isinstance(n, int)
        assert record.payload == {"round": number, "n": n, "pad": pad(number, n)}
        numbers[number].append(n)
    for number, count in acked.items():
        assert numbers[number] == list(range(len(numbers[number]))), f"a gap in round {number}, seed {SEED}"
        assert len(numbers[number]) >= count, f"acknowledged records are gone in round {number}, seed {SEED}"
    assert [record.epoch for record in found] == sorted(record.epoch for record in found)
    assert sum(1 for count in acked.values() if count) > KILLS / 4, "too few writers lived long enough to tell anything"

    assert list(replay(tmp_path / "ledger")) == found
    with LedgerIndex(tmp_path / "ledger", tmp_path / "index.sqlite") as index:
        assert index.update() == len(found)
