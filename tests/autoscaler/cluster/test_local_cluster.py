"""A `ray start` that ends with an error, hangs, is killed or interrupted leaves nothing running."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ebbtide_autoscaler.cluster import local_cluster
from ebbtide_autoscaler.cluster.cluster_processes import MARK
from ebbtide_autoscaler.cluster.node_size import NodeSize

POOL = f"leftover{os.getpid()}"

# It does what Ray does after "The current node timed out during startup": it ends, and leaves what it has begun.
STAND_IN = """
import os, signal, subprocess, sys, time
temp = next(word for word in sys.argv if word.startswith("--temp-dir="))
quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
"""
SLEEP = 'subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", %s], start_new_session=True, %s)\n'
GCS = SLEEP % ("temp", "**quiet")
CLIENT_SERVER = SLEEP % ("'ray.util.client.server'", "**quiet")  # nothing on its command line tells its cluster
KEEPS_OUTPUT = SLEEP % ("temp", "")
WITHOUT_ENVIRONMENT = SLEEP % ("temp", "env={}, **quiet")
FAILS = 'sys.exit("The current node timed out during startup.")'


@pytest.fixture
def ray_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of the stand-in."""
    scripts = tmp_path / "ray" / "scripts"
    scripts.mkdir(parents=True)
    for folder in (scripts, scripts.parent):
        (folder / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # of the child alone
    yield scripts / "scripts.py"
    local_cluster.end_strangers(POOL)
    shutil.rmtree(local_cluster.runtime_dir(POOL), ignore_errors=True)


def left() -> tuple[tuple[int, int], ...]:
    time.sleep(0.3)
    return local_cluster.strangers(POOL)


@pytest.mark.parametrize(
    ("begins", "ends", "words"),
    [
        (GCS, FAILS, "ray start ended with 1: The current node timed out during startup."),
        (CLIENT_SERVER, FAILS, "ray start ended with 1"),
        (KEEPS_OUTPUT, FAILS, "ray start ended with 1"),
        (WITHOUT_ENVIRONMENT, FAILS, "ray start ended with 1"),
        (GCS + CLIENT_SERVER, "os.kill(os.getpid(), signal.SIGKILL)", "ray start was ended by signal 9"),
        (GCS + CLIENT_SERVER, "time.sleep(60)", "ray start did not come back within 2 s"),
    ],
    ids=["names its folder", "does not", "holds the output", "has no environment", "killed", "hangs"],
)
def test_nothing_of_a_failed_start_goes_on(
    begins: str, ends: str, words: str, ray_start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_cluster, "START_S", 2.0)
    ray_start.write_text(STAND_IN + begins + ends)
    began_s = time.monotonic()
    with pytest.raises(local_cluster.RayStartFailed, match=words):
        local_cluster.start(POOL, NodeSize(slots=1, cpus=1))
    assert time.monotonic() - began_s < 20
    assert left() == ()


def test_nor_of_one_that_is_interrupted(ray_start: Path, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    ray_start.write_text(STAND_IN + GCS + CLIENT_SERVER + f"open({str(ready)!r}, 'w').close()\ntime.sleep(60)")

    def interrupt() -> None:
        while not ready.exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        local_cluster.start(POOL, NodeSize(slots=1, cpus=1))
    assert left() == ()


def test_a_second_interrupt_does_not_stop_the_ending(ray_start: Path, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    stubborn = SLEEP.replace("import time;", "import signal, time; signal.signal(15, signal.SIG_IGN);")
    ray_start.write_text(
        STAND_IN + stubborn % ("temp", "**quiet") + f"time.sleep(1); open({str(ready)!r}, 'w').close()\ntime.sleep(60)"
    )

    def interrupt() -> None:
        while not ready.exists():
            time.sleep(0.02)
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.5)

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        local_cluster.start(POOL, NodeSize(slots=1, cpus=1))
    thread.join()
    assert left() == ()


def test_a_folder_that_cannot_be_written_is_named(ray_start: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = ray_start.parent / "file"
    blocked.touch()
    monkeypatch.setattr(local_cluster, "runtime_dir", lambda _pool: blocked / POOL)
    with pytest.raises(OSError, match=str(blocked)):
        local_cluster.start(POOL, NodeSize(slots=1, cpus=1))


def test_what_runs_without_a_record_is_known_by_who_began_it(
    ray_start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a `kill -9` of `up`: `down` finds it, and ends nothing of another EBBTIDE_HOME."""
    monkeypatch.setenv("EBBTIDE_HOME", str(tmp_path / "home"))
    local_cluster.own(POOL, f"{tmp_path / 'home'} {tmp_path / 'shared'}")
    mark = str(local_cluster.runtime_dir(POOL) / "ray-123456")
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env={**os.environ, MARK: mark})
    try:
        assert local_cluster.unrecorded(POOL) == (POOL,) and POOL in local_cluster.unrecorded(None)
        monkeypatch.setenv("EBBTIDE_HOME", str(tmp_path / "another"))
        assert local_cluster.unrecorded(POOL) == () and POOL not in local_cluster.unrecorded(None)
        assert local_cluster.end_strangers(POOL) == 1
        assert local_cluster.unrecorded(POOL) == ()
    finally:
        worker.kill()
        worker.wait()
