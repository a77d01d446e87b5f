"""What of a real process tree is in CRIU's way: this process's own children with all kinds of descriptors."""

import ctypes
import os
import pty
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from ebbtide.diagnostics.probe import criu_facts as module
from ebbtide.diagnostics.probe.criu_facts import program_fact, ray_worker_fact, tree_facts
from ebbtide.diagnostics.probe.helper_facts import HelperSaid
from ebbtide.helper.criu.criu_program import Criu, NoCriu
from ebbtide.helper.criu.proc_tree import Opened, Tree, look_at
from ebbtide.snapshot.driver.port import Capabilities
from ebbtide.snapshot.tiers import Means

IO_URING_SETUP = 425  # on every architecture


@contextmanager
def child(folder: Path, *inherited: int, stdin: int = subprocess.DEVNULL, new_session: bool = True) -> Iterator[int]:
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(60)"],
            pass_fds=inherited,
            stdin=stdin,
            stdout=output,
            stderr=output,
            start_new_session=new_session,
        )
    try:
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def why_not(pid: int) -> str:
    facts = tree_facts([pid])
    assert all(fact.hinders == {Means.CRIU} and fact.remedy for fact in facts)
    return "; ".join(fact.what for fact in facts)


def test_a_process_of_its_own_has_nothing_in_the_way(tmp_path: Path) -> None:
    with child(tmp_path) as pid:
        assert why_not(pid) == ""


def test_a_socket_that_leads_out_of_the_tree_is_in_the_way(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs), child(tmp_path, theirs.fileno()) as pid:
        assert "unix socket to a process outside" in why_not(pid)


def test_a_tcp_connection_is_in_the_way(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as one,
        child(tmp_path, one.fileno()) as pid,
    ):
        assert "TCP connection" in why_not(pid)


def test_a_terminal_is_in_the_way(tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    try:
        with child(tmp_path, stdin=follower) as pid:
            assert "terminal" in why_not(pid)
    finally:
        os.close(leader)
        os.close(follower)


def test_a_pipe_to_us_and_our_session_are_in_the_way(tmp_path: Path) -> None:
    with child(tmp_path, stdin=subprocess.PIPE, new_session=False) as pid:
        found = why_not(pid)
        assert "pipe to process" in found and "not the leader of a session" in found


def test_io_uring_is_in_the_way(tmp_path: Path) -> None:
    params = ctypes.create_string_buffer(120)  # struct io_uring_params
    ring = ctypes.CDLL(None, use_errno=True).syscall(IO_URING_SETUP, 4, params)
    if ring < 0:
        pytest.skip(f"this kernel gives no io_uring: {os.strerror(ctypes.get_errno())}")
    try:
        with child(tmp_path, ring) as pid:
            assert "io_uring" in why_not(pid)
    finally:
        os.close(ring)


def test_a_gpu_is_the_drivers_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def on_a_gpu(pid: int) -> Tree:
        root = look_at(pid).root
        opened = (*root.opened, Opened(9, "/dev/nvidia0", 0))
        return Tree((replace(root, opened=opened, mapped=root.mapped | {"/dev/nvidia-uvm"}),))

    monkeypatch.setattr(module, "look_at", on_a_gpu)
    with child(tmp_path) as pid:
        assert why_not(pid) == ""


def test_a_process_that_is_gone_is_left_to_others() -> None:
    assert tree_facts([2**22 + 1]) == ()


def test_ranks_of_jobs_are_ray_workers() -> None:
    assert ray_worker_fact().hinders == {Means.CRIU}


def test_the_helpers_word_on_criu_counts(tmp_path: Path) -> None:
    def search(_environ: object, _checkout: Path) -> Criu:
        return Criu(tmp_path / "criu", "4.2")

    alone = program_fact(HelperSaid(), {}, tmp_path, search=search)
    assert alone.value == "4.2" and not alone.hinders
    none = program_fact(HelperSaid(Capabilities(""), "", "no CRIU at /x"), {}, tmp_path, search=search)
    assert none.hinders == {Means.CRIU} and none.where == "the helper" and none.what == "no CRIU at /x"
    assert program_fact(HelperSaid(Capabilities(""), "4.1"), {}, tmp_path, search=lambda *_: NoCriu("x")).value == "4.1"
