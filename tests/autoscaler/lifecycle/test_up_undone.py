"""Wherever `up` fails or is interrupted, nothing of it is left running or on record; and it ends no other's cluster."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ebbtide.client.cluster_join import ClusterUnreachable
from ebbtide.client.cluster_record import ClusterRecord, NoPool, load_cluster, save_cluster
from ebbtide.config.loading.pool_file_loader import load
from ebbtide.config.pool_file import PoolFile
from ebbtide_autoscaler.cluster import local_cluster
from ebbtide_autoscaler.cluster.cluster_processes import MARK
from ebbtide_autoscaler.lifecycle import up as module
from ebbtide_autoscaler.lifecycle.ownership import Taken
from ebbtide_autoscaler.lifecycle.pool_presence import PoolPresence
from tests.integration.conftest import a_free_port

POOL = f"undone{os.getpid()}"
STARTS = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True,
                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PoolFile]:
    """A file whose `ray start` begins one process, and an `up` whose further steps do nothing."""
    scripts = tmp_path / "stand_in" / "ray" / "scripts"
    scripts.mkdir(parents=True)
    for folder in (scripts, scripts.parent):
        (folder / "__init__.py").touch()
    (scripts / "scripts.py").write_text(STARTS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "stand_in"))  # of the child alone
    monkeypatch.setenv("EBBTIDE_HOME", str(tmp_path / "home"))
    claim = SimpleNamespace(id="c", shared_dir=str(tmp_path / "shared"))
    for name in ("join", "_fits", "mark_directory", "_configure", "_wait_ready"):
        monkeypatch.setattr(module, name, lambda *_: None)
    monkeypatch.setattr(module, "check_cluster", lambda *_: None)
    monkeypatch.setattr(module, "claim_cluster", lambda *_: claim)
    file = tmp_path / "pool.yaml"
    file.write_text(f"pool: {{name: {POOL}, slots: 1, shared_dir: shared}}\ngateway: {{port: {a_free_port()}}}\n")
    yield load(file)
    local_cluster.end_strangers(POOL)
    shutil.rmtree(local_cluster.runtime_dir(POOL), ignore_errors=True)


def bring_up(config: PoolFile, standing: PoolPresence, say: Callable[[str], None] = lambda _: None) -> ClusterRecord:
    return module.up(config, Path("pool.yaml"), standing, say=say)


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_: object) -> None:
        raise error

    return fail


def test_what_came_up_stays(config: PoolFile) -> None:
    """Else the tests below would prove nothing."""
    bring_up(config, PoolPresence("none"))
    assert len(local_cluster.strangers(POOL)) == 1 and load_cluster(POOL).pool == POOL


FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("step", "error"),
    [
        ("join", ClusterUnreachable("no answer")),
        ("check_cluster", Taken("another pool's")),
        ("_fits", module.UpRefused("too large")),
        ("_fits", SystemExit(15)),
        ("claim_cluster", Taken("another was quicker")),
        ("save_cluster", FULL),
        ("mark_directory", FULL),
        ("_configure", module.UpFailed("the arbiter cannot start")),
        ("_configure", ValueError("the arbiter refused the file")),
        ("_configure", KeyboardInterrupt()),
        ("_wait_ready", module.UpFailed("not ready")),
    ],
    ids=lambda one: one if isinstance(one, str) else type(one).__name__,
)
def test_any_step_that_fails(
    step: str, error: BaseException, config: PoolFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, step, raising(error))
    said: list[str] = []
    with pytest.raises(type(error)):
        bring_up(config, PoolPresence("none"), said.append)
    assert local_cluster.strangers(POOL) == ()
    assert said[-1] == "`up` did not come to its end: ended the 1 processes that it had started"
    with pytest.raises(NoPool):
        load_cluster(POOL)


def test_a_terminal_that_went_away(config: PoolFile) -> None:
    def say(line: str) -> None:
        if line.startswith("Ray:"):
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    with pytest.raises(BrokenPipeError):
        bring_up(config, PoolPresence("none"), say)
    assert local_cluster.strangers(POOL) == ()


def test_a_record_of_the_cluster_that_was_lost_stays(config: PoolFile, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = str(config.pool.shared_dir)
    lost = ClusterRecord(POOL, "127.0.0.1:9", "", "", shared, "", temp_dir="/tmp/ebbtide-no-such", claim="x")
    save_cluster(lost)
    monkeypatch.setattr(module, "what_comes_back", lambda _: ())
    monkeypatch.setattr(module, "_fits", raising(module.UpRefused("too large")))
    with pytest.raises(module.UpRefused):
        bring_up(config, PoolPresence("gone", lost))
    assert local_cluster.strangers(POOL) == () and load_cluster(POOL) == lost
    monkeypatch.setattr(module, "_fits", lambda *_: None)
    monkeypatch.setattr(module, "_configure", raising(module.UpFailed("no")))
    with pytest.raises(module.UpFailed):
        bring_up(config, PoolPresence("gone", lost))
    with pytest.raises(NoPool):
        load_cluster(POOL)


@pytest.mark.proves("a refused `up` ends no other's cluster")
def test_another_s_cluster_of_the_same_name_goes_on(config: PoolFile) -> None:
    local_cluster.own(POOL, "/home/another /shared/another")
    mark = str(local_cluster.runtime_dir(POOL) / "ray-123456")
    theirs = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env={**os.environ, MARK: mark})
    try:
        with pytest.raises(Taken, match="/home/another /shared/another"):
            bring_up(config, PoolPresence("none"))
        assert theirs.poll() is None
    finally:
        theirs.kill()
        theirs.wait()


def test_one_that_is_up_already_goes_on(config: PoolFile, monkeypatch: pytest.MonkeyPatch) -> None:
    record = bring_up(config, PoolPresence("none"))
    monkeypatch.setattr(module, "_configure", raising(ValueError("the arbiter refused the file")))
    with pytest.raises(ValueError, match="refused"):
        bring_up(config, PoolPresence("up", record))
    assert len(local_cluster.strangers(POOL)) == 1 and load_cluster(POOL) == record


@pytest.mark.parametrize("is_first", [True, False])
def test_a_joined_cluster_is_left_as_it_was_found(
    is_first: bool, config: PoolFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What this `up` began there is taken down again; a pool that another user brought up there goes on."""
    pool = config.pool.model_copy(update={"ray_address": "10.0.0.1:6379"})
    joined = config.model_copy(update={"pool": pool})
    taken_down: list[ClusterRecord] = []
    monkeypatch.setattr(module, "_known_id", lambda *_: "")
    monkeypatch.setattr(module, "require_listener", lambda _: None)
    monkeypatch.setattr(module, "check_cluster", lambda *_: None if is_first else SimpleNamespace(id="theirs"))
    monkeypatch.setattr(module, "_wait_ready", raising(module.UpFailed("not ready")))
    monkeypatch.setattr(module, "down", lambda record, say: taken_down.append(record))
    with pytest.raises(module.UpFailed):
        bring_up(joined, PoolPresence("none"))
    assert [one.claim for one in taken_down] == (["c"] if is_first else [])


WITH_SIGNALS = """
import sys, time
from pathlib import Path
from ebbtide.client.cluster_record import ClusterRecord
from ebbtide.config.loading.pool_file_loader import load
from ebbtide.system.interrupts import terminated_is_interrupted
from ebbtide_autoscaler.lifecycle import up as module
from ebbtide_autoscaler.lifecycle.pool_presence import PoolPresence

def join(_record):
    print("joining", flush=True)
    time.sleep(60)

module.join = join
with terminated_is_interrupted():
    module.up(load(Path(sys.argv[1])), Path(sys.argv[1]), PoolPresence("none"), say=print)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals(number: signal.Signals, config: PoolFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The stand-in is for `ray start` alone: this process needs Ray itself.
    script = f"import os, sys\nos.environ['PYTHONPATH'] = sys.argv[2]\n{WITH_SIGNALS}"
    monkeypatch.delenv("PYTHONPATH")
    up = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys\n" + script + WITH_SIGNALS,
            str(tmp_path / "pool.yaml"),
            str(tmp_path / "stand_in"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert up.stdout is not None
    while "joining" not in up.stdout.readline():
        assert up.poll() is None
    assert len(local_cluster.strangers(POOL)) == 1
    up.send_signal(number)
    out = up.stdout.read()
    up.wait(30)
    assert "ended the 1 processes" in out and local_cluster.strangers(POOL) == ()


def test_killed_it_leaves_all_and_the_next_one_ends_it(
    config: PoolFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring_up(config, PoolPresence("none"))
    (left,) = local_cluster.strangers(POOL)
    (tmp_path / "home" / POOL / "cluster.json").unlink()  # it did not come that far
    said: list[str] = []
    bring_up(config, PoolPresence("none"), said.append)
    assert said[0] == "ended 1 Ray processes of an `ebbtide up` that did not come to its end"
    (anew,) = local_cluster.strangers(POOL)
    assert anew != left
