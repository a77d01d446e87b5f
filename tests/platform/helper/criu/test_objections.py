"""Why a tree cannot be dumped: every rule once, on trees that are made up; and that real trees are seen as they are."""

import os
import pty
import socket
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ebbtide.helper.criu.connections import Connection, Kind, holders_elsewhere, sockets_of
from ebbtide.helper.criu.objections import GHOST_LIMIT_BYTES, Ends, objections, pipes, socket_inodes
from ebbtide.helper.criu.proc_tree import Opened, Tree, look_at
from tests.builders.helper import GOOD
from tests.platform.helper.trees import counting

NOTHING = Ends({}, {})


def opens(target: str, size: int | None = None) -> dict[str, Any]:
    return {"opened": (*GOOD.opened, Opened(5, target, os.O_RDWR, size))}


def connected(kind: Kind, peer: int = 0, *, takes_inet: bool = True) -> Ends:
    return Ends({7: Connection(7, kind, peer)}, {}, takes_inet)


AGAINST: list[tuple[dict[str, Any], Ends, str]] = [
    ({"session": 3}, NOTHING, "not the leader of a session"),
    ({"tty": 34816}, NOTHING, "has a terminal"),
    ({"state": "T"}, NOTHING, "is stopped"),
    ({"tracer": 4}, NOTHING, "traced by process 4"),
    ({"foreign_namespaces": ("net", "pid")}, NOTHING, r"other namespaces \(net, pid\)"),
    ({"mapped": frozenset({"anon_inode:[io_uring]"})}, NOTHING, "io_uring"),
    ({"mapped": frozenset({"/dev/nvidia0"})}, NOTHING, "off its GPU first"),
    (opens("anon_inode:[io_uring]"), NOTHING, "io_uring"),
    (opens("anon_inode:[perf_event]"), NOTHING, "perf_event"),
    (opens("/dev/nvidiactl"), NOTHING, "off its GPU first"),
    (opens("/dev/pts/3"), NOTHING, "terminal /dev/pts/3"),
    (opens("/dev/fuse"), NOTHING, "device /dev/fuse"),
    (opens("/big (deleted)", GHOST_LIMIT_BYTES + 1), NOTHING, "deleted file of"),
    (opens("pipe:[9]"), Ends({}, {"pipe:[9]": 77}), "pipe to process 77 as descriptor 5"),
    (opens("socket:[7]"), connected(Kind.UNIX, 99), "unix socket to a process outside"),
    (opens("socket:[7]"), connected(Kind.TCP_CONNECTED), "TCP connection to outside its tree"),
    (opens("socket:[7]"), connected(Kind.TCP_CONNECTED, 99), "TCP connection to outside its tree"),
    (opens("socket:[7]"), connected(Kind.TCP_CONNECTED, 7, takes_inet=False), r"CRIU 4\.2 or later"),
    (opens("socket:[7]"), connected(Kind.OTHER), "a socket that CRIU cannot"),
    (opens("socket:[7]"), connected(Kind.UDP, takes_inet=False), r"CRIU 4\.2 or later"),
    (opens("socket:[7]"), connected(Kind.TCP_LISTENING, takes_inet=False), r"CRIU 4\.2 or later"),
]
FINE: list[tuple[dict[str, Any], Ends]] = [
    ({}, NOTHING),
    (opens("pipe:[9]"), NOTHING),
    (opens("anon_inode:[eventpoll]"), NOTHING),
    (opens("/small (deleted)", GHOST_LIMIT_BYTES), NOTHING),
    (opens("/dev/shm/mine", 5), NOTHING),
    (opens("socket:[7]"), connected(Kind.UNIX)),
    (opens("socket:[7]"), connected(Kind.UNIX, 7)),
    (opens("socket:[7]"), connected(Kind.TCP_LISTENING)),
    (opens("socket:[7]"), connected(Kind.TCP_CONNECTED, 7)),
    (opens("socket:[7]"), connected(Kind.UDP)),
]


@pytest.mark.parametrize(("change", "ends", "says"), AGAINST, ids=[says for _, _, says in AGAINST])
def test_each_rule_objects_once_with_a_remedy(change: dict[str, Any], ends: Ends, says: str) -> None:
    odd = replace(GOOD, **change)
    for members in ((odd,), (GOOD, replace(odd, pid=11, session=odd.session))):
        found = objections(Tree(members), ends)
        assert len(found) == 1 and found[0].remedy
        if len(members) == 1 or "session" not in change:
            with pytest.raises(AssertionError, match=says):
                raise AssertionError(str(found[0]))


@pytest.mark.parametrize(("change", "ends"), FINE)
def test_what_criu_takes_is_no_objection(change: dict[str, Any], ends: Ends) -> None:
    assert objections(Tree((replace(GOOD, **change),)), ends) == ()


def test_that_we_stopped_it_is_no_objection() -> None:
    assert objections(Tree((replace(GOOD, state="T"),)), NOTHING, stopped=True) == ()


def seen(pid: int) -> str:
    """All objections against a real tree."""
    tree = look_at(pid)
    ends = Ends(
        sockets_of(pid, socket_inodes(tree)), holders_elsewhere(pipes(tree), frozenset(m.pid for m in tree.members))
    )
    return " / ".join(map(str, objections(tree, ends)))


def test_real_trees_are_seen_as_they_are(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    listening = socket.create_server(("127.0.0.1", 0))
    caller = socket.create_connection(listening.getsockname())
    answered, _ = listening.accept()
    main_end, terminal = pty.openpty()
    cases: list[tuple[tuple[str, ...], dict[str, Any], str]] = [
        ((), {}, ""),
        (("99999999", "child,pipe,socketpair,listen,udp"), {}, ""),
        (("99999999", "tcp"), {}, ""),
        (("99999999", "tcp6"), {}, ""),
        ((), {"stdout": subprocess.PIPE}, f"pipe to process {os.getpid()} as descriptor 1"),
        ((), {"pass_fds": [theirs.fileno()]}, "unix socket to a process outside"),
        ((), {"pass_fds": [answered.fileno()]}, "TCP connection"),
        ((), {"stderr": terminal}, "terminal /dev/pts/"),
        ((), {"start_new_session": False}, "not the leader of a session"),
    ]
    with ours, theirs, listening, caller, answered:
        for number, (words, how, says) in enumerate(cases):
            here = tmp_path / str(number)
            here.mkdir()
            with counting(here, *words, **how) as tree:
                found = seen(tree.pid)
                assert (says in found) and bool(says) == bool(found), (words, how, found)
    os.close(main_end)
    os.close(terminal)


def test_a_process_that_is_gone_is_no_tree() -> None:
    with pytest.raises(ProcessLookupError):
        look_at(1 << 30)
