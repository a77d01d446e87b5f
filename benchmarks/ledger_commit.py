"""What a durable append to the ledger costs, at 1, 10 and 100 appenders at once, against a bare write and fsync.

The physical limit is the same bytes written and synced by one thread in the same directory; rounds of both are
interleaved, so that whatever else the disk does hits both. Each appender waits for its acknowledgement before it
appends again, as the arbiter's callers do: more appenders share an fsync, so the rate rises and the latency hardly.

usage: python -m benchmarks.ledger_commit [--quick]
"""

import os
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path

from benchmarks.rows import Bar, Row, percentile, result, row, write
from ebbtide.ledger.epoch_log import EpochLog
from ebbtide.ledger.reader import replay
from ebbtide.ledger.record import JSON, encode_payload, frame

APPENDERS = (1, 10, 100)
RECORD: dict[str, JSON] = {
    "type": "event",
    "id": "12.3456",
    "at_s": 1700000000.123,
    "cause": "12.3401",
    "body": {"kind": "slot_freed", "slot": "3f2a9c0d5b7e4f1a8c6d2b0e9f7a5c3d1b8e6f4a2c0d9b7e:3"},
}
COMMAND = "python -m benchmarks.ledger_commit"


def measure(quick: bool = False) -> tuple[list[Row], list[Bar]]:
    """The rows of all cases. There is no bar: no issue has set a goal for it."""
    rounds, seconds, events = (3, 0.3, 5_000) if quick else (9, 1.0, 100_000)
    found: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="ebbtide-ledger-", dir=os.environ.get("EBBTIDE_BENCH_DIR")) as folder:
        log = EpochLog.open(Path(folder) / "ledger", writer="benchmark")
        for _ in range(rounds):
            _note(found, "bare write + fsync", _bare(Path(folder) / "bare", seconds), seconds)
            for appenders in APPENDERS:
                _note(found, f"ledger, {appenders} appenders", _appends(log, appenders, seconds), seconds)
        log.close()
        rate = _replay(Path(folder) / "replayed", events)
    rows = [row(case, metric, unit, values) for (case, metric, unit), values in found.items()]
    return [*rows, row(f"replay of {events} records", "rate", "records/s", [rate], digits=0)], []


def _note(found: dict[tuple[str, str, str], list[float]], case: str, took_s: list[float], seconds: float) -> None:
    found[case, "rate", "appends/s"].append(len(took_s) / seconds)
    for share in (0.5, 0.99):
        found[case, f"p{round(100 * share)}", "ms"].append(1000 * percentile(took_s, share))


def _bare(path: Path, seconds: float) -> list[float]:
    data = frame(1, 1, encode_payload(RECORD))
    took_s: list[float] = []
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        end_s = time.perf_counter() + seconds
        while (began_s := time.perf_counter()) < end_s:
            os.write(fd, data)
            os.fsync(fd)
            took_s.append(time.perf_counter() - began_s)
    finally:
        os.close(fd)
    return took_s


def _appends(log: EpochLog, appenders: int, seconds: float) -> list[float]:
    took_s: list[list[float]] = [[] for _ in range(appenders)]
    start = threading.Barrier(appenders)

    def work(mine: list[float]) -> None:
        start.wait()
        end_s = time.perf_counter() + seconds
        while (began_s := time.perf_counter()) < end_s:
            log.append([RECORD]).result(60)
            mine.append(time.perf_counter() - began_s)

    threads = [threading.Thread(target=work, args=(mine,)) for mine in took_s]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [one for mine in took_s for one in mine]


def _replay(directory: Path, events: int) -> float:
    log = EpochLog.open(directory, writer="benchmark")
    log.append([RECORD] * events).result(120)
    log.close()
    began_s = time.perf_counter()
    assert sum(1 for _ in replay(directory)) == events
    return events / (time.perf_counter() - began_s)


def main() -> None:
    """Measure and write ``benchmarks/results/ledger_commit.json``."""
    rows, bars = measure(quick="--quick" in sys.argv)
    for one in rows:
        print(
            f"{one.case:28} {one.metric:5} {one.median:10.2f} {one.unit}  ({one.min:.2f} .. {one.max:.2f}, n={one.n})"
        )
    print(write(result("ledger_commit", COMMAND, rows, bars)))


if __name__ == "__main__":
    main()
