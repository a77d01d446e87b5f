"""What `ebbtide why` says of a job that did not step aside as it was asked to: who said no, what for, and what it cost.

The whole way: a rank's report, the arbiter's event, the ledger on a disk, the command.
"""

from pathlib import Path

import pytest
from click.testing import CliRunner

from ebbtide.cli.main import cli
from ebbtide.ledger.epoch_log import EpochLog
from ebbtide.pool.events import JobCrashed, ParkJob, StopJob
from ebbtide.pool.ids import JobName
from ebbtide_autoscaler.journal.records import Journal, recover
from tests.autoscaler.closed_loop import Loop
from tests.builders.closed_loop import training, until

TRAIN = JobName("train")
# As `CudaContext` says it, of a driver's lock that ran out of time (see `tests/train_jobs/worker/test_cuda_context`).
TIMED_OUT = "lock of job/0 did not end in time; the gang stops and restarts instead"


def why(loop: Loop, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The answer, of a ledger with everything that has happened."""
    monkeypatch.setenv("EBBTIDE_HOME", str(folder / "home"))
    monkeypatch.setenv("COLUMNS", "1000")
    log = EpochLog.open(folder / "ledger", writer="w")
    journal = Journal(log, recover(folder / "ledger", up_to=log.epoch))
    journal.write(loop.events).result(60.0)
    journal.close()
    ran = CliRunner().invoke(cli, ["why", TRAIN, "--shared-dir", str(folder), "-n", "40"])
    assert ran.exit_code == 0, ran.output
    return str(ran.output)


def told_in_order(text: str, *parts: str) -> None:
    at = 0
    for part in parts:
        found = text.find(part, at)
        assert found >= 0, f"{part!r} is not told, or too early:\n{text}"
        at = found


def test_a_freeze_that_the_driver_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, driver = training()
    driver.refuses_to_park, driver.why_not_park = True, TIMED_OUT
    loop.gateways[0].offer("chat")
    loop.run(60.0)
    assert [type(event.body) for event in loop.events if isinstance(event.body, ParkJob | StopJob)][:2] == [
        ParkJob,
        StopJob,
    ]
    told_in_order(
        why(loop, tmp_path, monkeypatch),
        "job train is asked to park: ",
        f"job train is asked to stop and restart: cannot park in place: {TIMED_OUT}",
        "job train has stopped after step ",
        "job train trains, ",
    )


def test_a_rank_that_never_comes_to_a_safe_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, driver = training()
    while driver.step - driver.durable < 3:
        loop.run(0.2)
    assert driver.gang is not None
    driver.gang.hangs = True
    loop.gateways[0].offer("chat")
    step, lost = driver.step, driver.step - driver.durable
    loop.run(90.0)
    [crash] = [event.body for event in loop.events if isinstance(event.body, JobCrashed)]
    assert crash.lost_steps == lost
    told_in_order(
        why(loop, tmp_path, monkeypatch),
        "job train is asked to park: ",
        f"job train crashed, about {lost} steps to repeat: it did not step aside within its grace of 5 s: "
        f"ranks 0, 1, 2 came to no safe point after step {step}",
        "job train can be granted slots again",
        f"{lost} to run again after a crash",
    )


def test_a_failed_start_by_the_id_that_a_client_was_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, _ = training()
    loop.cluster.serve.load_fails = True
    loop.gateways[0].offer("chat")
    until(loop, lambda: any(seat.failures for seat in loop.state.seats.values()))
    (failed,) = (seat for seat in loop.state.seats.values() if seat.failures)
    why(loop, tmp_path, monkeypatch)
    ran = CliRunner().invoke(cli, ["why", str(failed.failure), "--shared-dir", str(tmp_path)])
    assert ran.exit_code == 0, ran.output
    told_in_order(
        ran.output,
        "because ",
        f"seat {failed.id} is granted ",
        f"the replica of {failed.id} is told to exit: it did not start: ",
        "out of memory",
    )
    assert CliRunner().invoke(cli, ["why", "9.9", "--shared-dir", str(tmp_path)]).exit_code == 2
