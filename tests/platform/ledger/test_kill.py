"""Writers killed at random moments. EBBTIDE_KILLS sets how many (default 200), EBBTIDE_SEED another seed."""

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from ebbtide.ledger.index import LedgerIndex
from ebbtide.ledger.reader import replay
from tests.platform.ledger.kill_writer import pad

KILLS = int(os.environ.get("EBBTIDE_KILLS", "200"))
SEED = int(os.environ.get("EBBTIDE_SEED", "1"))


def test_every_acknowledged_record_survives_kill_9_and_no_half_record_does(tmp_path: Path) -> None:
    program = Path(__file__).with_name("kill_writer.py")
    ran = subprocess.run(
        [sys.executable, str(program), str(tmp_path / "ledger"), str(KILLS), str(SEED)],
        capture_output=True,
        text=True,
        timeout=60 + KILLS,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    acked = {one["round"]: one["acked"] for one in map(json.loads, ran.stdout.splitlines())}
    assert len(acked) == KILLS

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
