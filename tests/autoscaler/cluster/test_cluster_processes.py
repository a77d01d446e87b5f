"""A cluster's processes are found by command line, mark or tree, and ended for good; no other's are."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ebbtide.system.process import is_alive, started_ticks
from ebbtide_autoscaler.cluster.cluster_processes import MARK, end_all, processes_of

SLEEP = "import time; time.sleep(60)"


def begin(code: str, *words: str, **environ: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", code, *words], env={**os.environ, **environ}, stdout=subprocess.PIPE, text=True
    )


@pytest.fixture
def temp_dir(tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path / "ray-abcdef")
    for process in psutil.process_iter(["pid"]):
        try:
            if str(tmp_path) in process.environ().get(MARK, "") or str(tmp_path) in " ".join(process.cmdline()):
                process.kill()
        except psutil.Error:
            continue


def alive(pid: int) -> bool:
    started = started_ticks(pid)
    return started is not None and is_alive(pid, started)


def test_by_command_line_by_mark_and_no_other_cluster(temp_dir: str) -> None:
    named = begin(SLEEP, f"--temp-dir={temp_dir}")
    marked = begin(SLEEP, **{MARK: temp_dir})
    others = [begin(SLEEP), begin(SLEEP, **{MARK: "/tmp/other/ray-1"}), begin(SLEEP, RAY_TMPDIR=temp_dir)]
    try:
        assert {pid for pid, _ in processes_of(temp_dir)} == {named.pid, marked.pid}
        end_all(temp_dir)
        assert processes_of(temp_dir) == ()
        assert [one.poll() for one in others] == [None] * 3, "a shell with `ebbtide env` is no part of the cluster"
    finally:
        for one in (named, marked, *others):
            one.kill()
            one.wait()


def test_one_that_renamed_itself_and_lost_its_parent(temp_dir: str) -> None:
    """As an engine process of vLLM: the new title is written over the environment."""
    Path(temp_dir).mkdir()
    title = f"VLLM::EngineCore {'x' * 5000}"
    child = f"import time; from setproctitle import setproctitle; setproctitle({title!r}); time.sleep(60)"
    parent = begin(
        "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', sys.argv[1]], start_new_session=True,"
        " stdout=open(sys.argv[2], 'w')).pid)",
        child,
        f"{temp_dir}/worker.out",
        **{MARK: temp_dir},
    )
    out, _ = parent.communicate(timeout=30)
    pid, deadline_s = int(out), time.monotonic() + 20
    while MARK in psutil.Process(pid).environ() and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert pid in {found for found, _ in processes_of(temp_dir)}
    end_all(temp_dir)
    assert not alive(pid)


def test_a_person_who_reads_a_log_there_goes_on_reading(temp_dir: str) -> None:
    Path(temp_dir).mkdir()
    (Path(temp_dir) / "raylet.out").touch()
    reader = subprocess.Popen(["tail", "-f", f"{temp_dir}/raylet.out"], stdout=subprocess.DEVNULL)
    try:
        assert processes_of(temp_dir) == ()
    finally:
        reader.kill()
        reader.wait()


def test_one_that_ignores_the_request_is_killed(temp_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebbtide_autoscaler.cluster.cluster_processes.STOP_S", 0.3)
    stubborn = begin(
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)",
        **{MARK: temp_dir},
    )
    assert stubborn.stdout is not None and stubborn.stdout.readline() == "ready\n"
    assert end_all(temp_dir) == 1
    assert stubborn.wait(5) == -signal.SIGKILL


def test_one_that_starts_another_while_it_is_ended(temp_dir: str) -> None:
    code = (
        "import signal, subprocess, sys, time\n"
        "def last(*_):\n"
        "    subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True,"
        " stdout=subprocess.DEVNULL)\n"
        "    sys.exit()\n"
        "signal.signal(signal.SIGTERM, last)\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)"
    )
    one = begin(code, **{MARK: temp_dir})
    assert one.stdout is not None and one.stdout.readline() == "ready\n"
    end_all(temp_dir)
    one.wait(5)
    time.sleep(0.2)
    assert processes_of(temp_dir) == ()


def test_a_command_within_the_cluster_does_not_end_itself(temp_dir: str) -> None:
    """`ebbtide down` in a session of the pool: the shell around it lives until it has said what it did."""
    code = (
        "import os; from ebbtide_autoscaler.cluster.cluster_processes import end_all, processes_of\n"
        f"print(len(processes_of({temp_dir!r})), end_all({temp_dir!r}))"
    )
    sleeper = begin(SLEEP, **{MARK: temp_dir})
    inside = begin(code, **{MARK: temp_dir})
    out, _ = inside.communicate(timeout=60)
    assert (inside.returncode, out) == (0, "1 0\n")
    assert sleeper.wait(5) == -signal.SIGTERM
