"""Who lives, who dies with whom, and who is never killed by mistake."""

import os
import subprocess
import sys
import time

import pytest

from ebbtide.system.process import boot_id, is_alive, kill_exactly, started_ticks
from tests.platform.agent.conftest import WAIT_S, wait_until

# A parent that starts a child which is to die with it, busy in Python all the time, and prints the child's pid.
PARENT = """
import os, subprocess, sys, time
from ebbtide.system.process import started_ticks
child = subprocess.Popen([sys.executable, "-c", '''
import sys
from ebbtide.system.process import exit_with_parent
exit_with_parent(int(sys.argv[1]), int(sys.argv[2]))
print("ready", flush=True)
while True: sum(range(1000))
''', str(os.getpid()), str(started_ticks(os.getpid()))], stdout=subprocess.PIPE, text=True)
assert child.stdout.readline() == "ready\\n"
print(child.pid, flush=True)
time.sleep(60)
"""


def test_a_process_is_told_from_a_later_one_of_the_same_pid() -> None:
    started = started_ticks(os.getpid())
    assert started is not None
    assert is_alive(os.getpid(), started)
    assert not is_alive(os.getpid(), started + 1)
    assert started_ticks(2**22 + 5) is None and not is_alive(2**22 + 5, 1)
    assert len(boot_id()) == 36


def test_a_zombie_holds_nothing() -> None:
    process = subprocess.Popen(["sleep", "60"])
    started = started_ticks(process.pid) or 0
    assert is_alive(process.pid, started)
    process.kill()
    wait_until(lambda: not is_alive(process.pid, started))
    assert started_ticks(process.pid) == started, "it is meant to be a zombie still"
    process.wait()


def test_a_dead_main_thread_with_living_threads_is_alive() -> None:
    program = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "print('ready', flush=True)\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        started = started_ticks(process.pid) or 0

        def main_thread_is_dead() -> bool:
            with open(f"/proc/{process.pid}/stat") as stat:
                return stat.read().rpartition(")")[2].split()[0] == "Z"

        wait_until(main_thread_is_dead)
        assert is_alive(process.pid, started)
    finally:
        process.kill()
        process.communicate()
    assert not is_alive(process.pid, started)


def test_only_the_very_process_is_killed() -> None:
    process = subprocess.Popen(["sleep", "60"])
    started = started_ticks(process.pid) or 0
    assert not kill_exactly(process.pid, started + 1)
    assert not kill_exactly(0, 0) and not kill_exactly(1, started_ticks(1) or 0) and not kill_exactly(-1, 0)
    assert process.poll() is None
    assert kill_exactly(process.pid, started)
    assert process.wait(WAIT_S) == -9
    assert not kill_exactly(process.pid, started)


def test_a_child_dies_within_a_second_of_the_kill_of_its_parent() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        started = started_ticks(child) or 0
        assert is_alive(child, started)
    finally:
        parent.kill()
        killed_s = time.monotonic()
        parent.communicate()
    wait_until(lambda: not is_alive(child, started), 5.0)
    assert time.monotonic() - killed_s < 1.0


@pytest.mark.parametrize("pid_offset, started_offset", [(0, 1), (2**22, 0)], ids=["reused pid", "no such pid"])
def test_a_child_whose_parent_is_gone_already_dies_at_once(pid_offset: int, started_offset: int) -> None:
    program = (
        "import sys; from ebbtide.system.process import exit_with_parent\n"
        "exit_with_parent(int(sys.argv[1]), int(sys.argv[2]))\n"
        "print('went on')\n"
    )
    words = [str(os.getpid() + pid_offset), str((started_ticks(os.getpid()) or 0) + started_offset)]
    ran = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert (ran.returncode, ran.stdout) == (-9, "")
