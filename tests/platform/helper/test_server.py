"""The helper's door: strangers, nonsense, too much, too slow, too many, and askers who leave."""

import json
import os
import pickle
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ebbtide.helper.client import Helper
from ebbtide.helper.criu.criu_program import NoCriu
from ebbtide.helper.errors import (
    Busy,
    HelperError,
    HelperUnusable,
    Malformed,
    OutcomeUnknown,
    Refused,
    Unreachable,
)
from ebbtide.helper.journal.operation import Workplace
from ebbtide.helper.journal.operation_locks import OperationLocks
from ebbtide.helper.protocol.line_socket import Peer
from ebbtide.helper.protocol.requests import LINE_LIMIT_BYTES, Facts, Request, parse
from ebbtide.helper.server import JOURNAL_FAILED, Server
from ebbtide.helper.service import Service
from ebbtide.snapshot.driver.bounded_driver import BoundedDriver
from ebbtide.snapshot.driver.no_driver import NoDriver
from ebbtide.storage.errors import NoRoom
from ebbtide.system.process import started_ticks
from ebbtide.system.runtime_dir import helper_socket, runtime_dir
from tests.platform.helper.edge_killer import workplace
from tests.platform.helper.made_up import FREE_PID
from tests.platform.helper.trees import Running, counting, helping, wait_until


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with helping(tmp_path_factory.mktemp("door")) as one:
        yield one


def test_it_listens_where_the_pool_of_that_user_looks(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ebbtide.helper"]
    nowhere = subprocess.run(command, capture_output=True, text=True, check=False)
    assert nowhere.returncode == 2 and "whose helper?" in nowhere.stderr
    pool, user = f"h{os.getpid()}", 4242
    asked = [*command, "--pool", pool, "--peer-uid", str(user)]
    try:
        with subprocess.Popen(asked, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline().startswith("ready")
                assert helper_socket(pool, user).is_socket()
            finally:
                process.kill()
    finally:
        shutil.rmtree(runtime_dir(pool, user), ignore_errors=True)


def send(path: Path, raw: bytes, *, finish: bool = True) -> dict[str, Any]:
    """Send bytes as they are; the answer."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        try:
            connection.sendall(raw)
            if finish:
                connection.shutdown(socket.SHUT_WR)
        except BrokenPipeError:
            pass  # it had heard enough
        answer = b""
        while part := connection.recv(1 << 16):
            answer += part
        return dict(json.loads(answer)) if answer else {}


NONSENSE: list[tuple[bytes, str]] = [
    (b"\n", "Invalid JSON"),
    (b"{\n", "Invalid JSON"),
    (b"\xff\xfe\n", "Invalid JSON"),
    (b"[]\n", "no request: the line"),
    (b'"dump"\n', "no request: the line"),
    (b"{}\n", "Unable to extract tag"),
    (b'{"verb":"exec","argv":["/bin/sh"]}\n', "does not match any of the expected tags"),
    (b'{"verb":"dump","name":"a"}\n', "image_dir: Field required"),
    (b'{"verb":"dump","name":"a","image_dir":"relative"}\n', "image_dir: String should match"),
    (b'{"verb":"dump","name":"a","image_dir":"/x\\u0000y"}\n', "image_dir: String should match"),
    (b'{"verb":"dump","name":"../a","image_dir":"/x"}\n', "name: String should match"),
    (b'{"verb":"dump","name":"a","image_dir":"/x","options":["--external"]}\n', "options: Extra inputs"),
    (b'{"verb":"register","name":"a","pid":1,"started":5}\n', "pid: Input should be greater than 1"),
    (b'{"verb":"register","name":"a","pid":"77","started":5}\n', "pid: Input should be a valid integer"),
    (b'{"verb":"lock","names":[]}\n', "names: List should have at least 1"),
    (b'{"verb":"lock","names":["a"],"timeout_ms":0}\n', "timeout_ms: Input should be greater than 0"),
    (b"[" * 100_000 + b"\n", "no request"),
]


@pytest.mark.parametrize(("raw", "says"), NONSENSE, ids=[says[:30] + str(n) for n, (_, says) in enumerate(NONSENSE)])
def test_nonsense_gets_one_clear_answer(running: Running, raw: bytes, says: str) -> None:
    answer = send(running.socket, raw)
    assert answer["ok"] is False and answer["error"]["kind"] == "malformed"
    assert says in answer["error"]["what"]


def test_a_line_that_is_too_long_is_not_read_to_its_end(running: Running) -> None:
    answer = send(running.socket, b"x" * (LINE_LIMIT_BYTES + 100_000), finish=False)
    assert answer["error"]["kind"] == "malformed" and f"more than {LINE_LIMIT_BYTES} bytes" in answer["error"]["what"]
    exact = b'{"verb":"facts"}'.ljust(LINE_LIMIT_BYTES) + b"\n"
    assert send(running.socket, exact)["ok"] is True


def test_half_a_request_and_silence_end_in_time_and_hold_up_nobody(folder: Path) -> None:
    server = started(folder, Slow())
    with socket.socket(socket.AF_UNIX) as slow:
        slow.connect(str(server))
        slow.sendall(b'{"verb":')
        assert send(server, b'{"verb":"facts"}\n')["ok"] is True
        slow.settimeout(5)
        assert b"no whole line within 0.3 s" in slow.recv(4096)


def test_an_asker_who_leaves_is_no_trouble(running: Running) -> None:
    for raw in (b"", b'{"verb":', b'{"verb":"facts"}\n'):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(running.socket))
            connection.sendall(raw)
    assert running.helper.facts()["version"] == 1


class Slow:
    """A service that takes its time."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        self.go.set()
        self.done = 0

    def answer(self, peer: Peer, request: Request) -> dict[str, Any]:
        assert peer.pid == os.getpid()
        self.begun.set()
        assert self.go.wait(20)
        self.done += 1
        return {}


def started(folder: Path, service: Slow, uids: frozenset[int] | None = None) -> Path:
    path = folder / "sock"
    server = Server(service, path, uids or frozenset({os.geteuid()}), line_wait_s=0.3)  # type: ignore[arg-type]
    threading.Thread(target=server.serve, daemon=True).start()
    return path


def test_at_its_deadline_an_answer_comes_and_the_work_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Slow()
    service.go.clear()
    monkeypatch.setattr(Facts, "deadline_s", 0.1)
    path = started(folder, service)
    with pytest.raises(OutcomeUnknown, match="facts goes on"):
        Helper(path).facts()
    assert service.done == 0
    service.go.set()
    end_s = time.monotonic() + 5
    while not service.done and time.monotonic() < end_s:
        time.sleep(0.01)
    assert service.done == 1


def test_too_many_askers_are_turned_away(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebbtide.helper.server.MOST_CONNECTIONS", 1)
    service = Slow()
    service.go.clear()
    path = started(folder, service)
    first = threading.Thread(target=Helper(path).facts)
    first.start()
    assert service.begun.wait(5)
    with pytest.raises(Busy, match="askers are waiting"):
        Helper(path).facts()
    service.go.set()
    first.join()
    assert service.done == 1
    wait_until(lambda: not is_full(path))


def is_full(path: Path) -> bool:
    try:
        Helper(path).facts()
    except Busy:
        return True
    return False


class Failing(Slow):
    """A service that does not do it."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def answer(self, peer: Peer, request: Request) -> dict[str, Any]:
        raise self.error


def test_what_cannot_be_looked_at_is_a_refusal(folder: Path) -> None:
    for number, error in enumerate((PermissionError(13, "Permission denied"), NoRoom("the disk is full"))):
        (folder / str(number)).mkdir()
        with pytest.raises(Refused, match=r"Permission denied|disk is full"):
            Helper(started(folder / str(number), Failing(error))).facts()


def test_a_helper_that_does_not_know_what_is_on_its_disk_ends(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the next one reads it back."""
    ended, over = list[int](), threading.Event()

    def end(code: int) -> None:
        ended.append(code)
        over.wait(10)

    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(Facts, "deadline_s", 0.5)
    with pytest.raises(OutcomeUnknown):
        Helper(started(folder, Failing(HelperUnusable("the journal cannot be written")))).facts()
    assert ended == [JOURNAL_FAILED]
    over.set()


AS_NOBODY = """
import os, socket, sys
os.setgid(65534); os.setuid(65534)
one = socket.socket(socket.AF_UNIX)
try:
    one.connect(sys.argv[1])
    one.sendall(b'{"verb":"facts"}\\n')
except PermissionError:
    print("no way in")
else:
    print(one.recv(4096).decode())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can ask as somebody else")
def test_another_user_gets_no_answer_even_through_an_open_socket(folder: Path) -> None:
    path = started(folder, Slow())
    assert path.stat().st_mode & 0o777 == 0o600

    def asked() -> str:
        ran = subprocess.run(
            [sys.executable, "-I", "-S", "-c", AS_NOBODY, str(path)],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
        return ran.stdout

    for parent in (folder, *folder.parents):  # so that it is the socket's own mode that counts
        if parent != Path("/") and not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o001)
    assert "no way in" in asked()
    path.chmod(0o666)
    assert "user 65534 may not ask" in asked()


@pytest.mark.proves("a process of another user is not registered")
def test_a_user_registers_no_process_of_another(folder: Path) -> None:
    service = local_service(workplace(folder), NoCriu("none"))
    with counting(folder) as tree:
        ask = parse(json.dumps({"verb": "register", "name": "a", "pid": tree.pid, "started": tree.started}).encode())
        with pytest.raises(Refused, match=f"belongs to user {os.geteuid()}, not 12345"):
            service.answer(Peer(1, 12345), ask)
        service.answer(Peer(1, os.geteuid()), ask)
        for verb in ("state", "forget"):
            name = {"names": ["a"]} if verb == "state" else {"name": "a"}
            with pytest.raises(Refused, match="not 12345"):
                service.answer(Peer(1, 12345), parse(json.dumps({"verb": verb, **name}).encode()))


def local_service(place: Workplace, tool: Any) -> Service:
    return Service(place, tool, BoundedDriver(NoDriver("none in this test")))


@pytest.mark.proves(
    "a name of a living process is taken",
    "a new process is a new generation",
    "a process that is not there is not registered",
    "a workload that was never registered is refused",
    "registering again changes nothing",
)
def test_the_registry_knows_a_process_from_a_later_one_of_its_number(folder: Path) -> None:
    def ask(service: Any, verb: str, **fields: Any) -> Any:
        return service.answer(Peer(1, os.geteuid()), parse(json.dumps({"verb": verb, **fields}).encode()))

    place = workplace(folder)
    service = local_service(place, NoCriu("none"))
    with counting(folder) as tree:
        this = {"name": "a", "pid": tree.pid, "started": tree.started}
        with pytest.raises(Refused, match="there is no process"):
            ask(service, "register", **{**this, "started": tree.started + 1})
        assert ask(service, "register", **this)["generation"] == 1
        assert ask(service, "register", **this)["generation"] == 1, "again is no error"
        with pytest.raises(Refused, match="which lives"):
            ask(service, "register", name="a", pid=os.getpid(), started=own_start())
        tree.process.kill()
        tree.process.wait()
    assert ask(service, "state", names=["a"])["workloads"][0]["alive"] is False
    assert ask(service, "register", name="a", pid=os.getpid(), started=own_start())["generation"] == 2
    place.journal.close()
    again = local_service(workplace(folder), NoCriu("none"))
    assert ask(again, "state", names=["a"])["workloads"][0]["pid"] == os.getpid()
    ask(again, "forget", name="a")
    with pytest.raises(Refused, match="nobody has registered a"):
        ask(again, "state", names=["a"])


def test_where_no_helper_is_nothing_was_asked(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match="no helper answers"):
        Helper(tmp_path / "none").facts()


def test_what_is_of_an_earlier_boot_is_gone_and_what_is_not_there_is_not_moved(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(verb: str, **fields: Any) -> Any:
        return service.answer(Peer(1, os.geteuid()), parse(json.dumps({"verb": verb, **fields}).encode()))

    service = local_service(workplace(folder), NoCriu("none"))
    with counting(folder) as tree:
        ask("register", name="a", pid=tree.pid, started=tree.started)
        with pytest.raises(Refused, match="none in this test"):
            ask("lock", names=["a"])
        with service._claims.claim({"a"}, "dump"), pytest.raises(Busy, match="dump of a is under way"):
            ask("lock", names=["a"])
        monkeypatch.setattr("ebbtide.helper.service.boot_id", lambda: "the next")
        assert ask("state", names=["a"])["workloads"][0]["alive"] is False
        with pytest.raises(Refused, match="is not there"):
            ask("lock", names=["a"])
        assert ask("register", name="a", pid=os.getpid(), started=own_start())["generation"] == 2
    with pytest.raises(Refused, match="there is no process"):
        ask("register", name="b", pid=FREE_PID, started=5)


def own_start() -> int:
    return started_ticks(os.getpid()) or 0


@pytest.mark.proves("a claim is given back", "what is claimed is refused at once")
def test_one_operation_at_a_time() -> None:
    claims = OperationLocks()
    with claims.claim({"a", "b"}, "dump"):
        with pytest.raises(Busy, match="dump of b is under way"), claims.claim({"c", "b"}, "lock"):
            raise AssertionError
        assert claims.who("b") == "dump" and claims.who("c") == ""
        with claims.claim({"c"}, "lock"):
            pass
    with claims.claim({"b"}, "lock"):
        pass


def test_the_client_sends_nothing_that_is_no_request(tmp_path: Path) -> None:
    with pytest.raises(Malformed, match="image_dir"):
        Helper(tmp_path / "none").revive(Path("relative"))


def test_errors_survive_the_way_to_another_process() -> None:
    for kind in (HelperError, Refused, Busy, OutcomeUnknown):
        again = pickle.loads(pickle.dumps(kind("what", "remedy")))
        assert (type(again), again.what, again.remedy) == (kind, "what", "remedy")
