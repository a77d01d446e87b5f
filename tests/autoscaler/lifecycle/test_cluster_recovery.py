"""What a lost cluster left behind is known by pid and start time, or by an environment that only Ray gives."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Timer

import pytest

from ebbtide.client.cluster_record import ClusterRecord
from ebbtide.ledger.epoch_log import EpochLog
from ebbtide.ledger.reader import epoch_path
from ebbtide.pool.events import Body, CancelJob, Event, JobDurable, JobEnded, JobHeld, JobSubmitted
from ebbtide.pool.ids import JobName, RecordId
from ebbtide.system.process import started_ticks
from ebbtide_autoscaler.cluster.cluster_processes import MARK
from ebbtide_autoscaler.journal.records import Journal, Recovered
from ebbtide_autoscaler.lifecycle.cluster_recovery import (
    STARTED_BY_RAYLET,
    end_left_behind,
    jobs_go_on,
    left_behind,
    what_comes_back,
)
from ebbtide_autoscaler.lifecycle.up import UpRefused, _port_is_free
from tests.autoscaler.closed_loop import a_job

TEMP = "/tmp/ebbtide-test-no-such-cluster"


def a_process(**environ: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env={**os.environ, **environ})


# Holds a port, and so much memory that its end takes a while: a process gives back memory first, files after it.
SLOW_TO_DIE = """
import socket, sys, time
held = bytearray(b"x") * (1 << 30)
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
time.sleep(60)
"""


@pytest.fixture
def processes() -> Iterator[dict[str, "subprocess.Popen[bytes]"]]:
    found = {
        "worker": a_process(RAY_TMPDIR=TEMP, **{STARTED_BY_RAYLET: "1"}),
        "shell with `ebbtide env`": a_process(RAY_TMPDIR=TEMP),
        "worker of another cluster": a_process(RAY_TMPDIR=f"{TEMP}-2", **{STARTED_BY_RAYLET: "1"}),
        "its process by the mark": a_process(**{MARK: TEMP}),
        "on record": a_process(),
        "reused pid": a_process(),
    }
    yield found
    for process in found.values():
        process.kill()
        process.wait()


def test_only_the_lost_cluster_s_own_processes_are_ended(processes: dict[str, "subprocess.Popen[bytes]"]) -> None:
    recorded, reused = processes["on record"].pid, processes["reused pid"].pid
    pids = ((recorded, started_ticks(recorded) or 0), (reused, 1))
    record = ClusterRecord("p", "h:1", "", "", "/s", "", temp_dir=TEMP, pids=pids)
    ended = ("worker", "its process by the mark", "on record")
    assert {pid for pid, _ in left_behind(record)} == {processes[name].pid for name in ended}
    assert end_left_behind(record) == 3
    for name in ended:
        assert processes[name].wait(10) == -9
    assert all(processes[name].poll() is None for name in processes if name not in ended)


def test_what_they_held_is_free_when_they_are_said_to_have_ended() -> None:
    environ = {**os.environ, "RAY_TMPDIR": TEMP, STARTED_BY_RAYLET: "1"}
    with subprocess.Popen([sys.executable, "-c", SLOW_TO_DIE], env=environ, stdout=subprocess.PIPE, text=True) as held:
        try:
            assert held.stdout is not None
            port = int(held.stdout.readline())
            assert end_left_behind(ClusterRecord("p", "h:1", "", "", "/s", "", temp_dir=TEMP)) == 1
            socket.create_server(("127.0.0.1", port)).close()
        finally:
            held.kill()


def test_a_port_whose_last_holder_is_dying_is_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(
            UpRefused, match=rf"{port}.* by process {os.getpid()} \(.*\): end it, or choose another gateway\.port"
        ):
            _port_is_free("127.0.0.1", port, patience_s=0.2)
        Timer(0.3, holder.close).start()
        _port_is_free("127.0.0.1", port, patience_s=10.0)


def test_a_joined_cluster_leaves_nothing_that_is_ours_to_end() -> None:
    assert left_behind(ClusterRecord("p", "h:1", "", "", "/s", "")) == ()


def test_an_empty_ledger_brings_nothing_back(tmp_path: Path) -> None:
    assert what_comes_back(tmp_path) == ()


def test_jobs_that_stepped_aside_before_a_pool_went_down_are_named_with_their_step(tmp_path: Path) -> None:
    assert jobs_go_on(tmp_path) == (), "a pool that comes up for the first time"
    left: list[Body] = [JobSubmitted(a_job(name), "i") for name in ("b", "a", "held", "over", "cancelled")]
    after: list[Body] = [
        JobDurable(JobName("b"), 50),
        JobHeld(JobName("held"), "ann", "r"),
        CancelJob(JobName("cancelled"), "r"),
    ]
    bodies: list[Body] = [*left, *after, JobEnded(JobName("over"), "finished", "")]
    events = [Event(RecordId(f"1.{number}"), 5.0, None, body) for number, body in enumerate(bodies, start=1)]
    journal = Journal(EpochLog.open(tmp_path / "ledger", writer="w"), Recovered())
    journal.write(events).result(60.0)
    journal.close()
    assert jobs_go_on(tmp_path) == ("jobs that go on as soon as their drivers are back: a from step 0, b from step 50",)


def test_a_ledger_that_cannot_be_read_names_none(tmp_path: Path) -> None:
    (tmp_path / "ledger").mkdir()
    epoch_path(tmp_path / "ledger", 1).write_text("rubbish\n")
    assert jobs_go_on(tmp_path) == ()
