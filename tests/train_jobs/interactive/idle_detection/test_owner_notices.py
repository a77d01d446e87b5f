"""Owners are told by webhook and by mail, into real sinks; what nobody takes in is tried again and said."""

import http.server
import json
import smtplib
import socketserver
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ebbtide.client.messages import DesiredState, RankPhase
from ebbtide_train.interactive.idle_detection.idle_rules import IdleRules
from ebbtide_train.interactive.idle_detection.owner_notices import Mail, Notice, OwnerNotices, Webhook
from ebbtide_train.interactive.supervision.session_states import SessionState
from ebbtide_train.interactive.supervision.session_supervisor import End
from tests.train_jobs.interactive.kept import FakeSnapshots, Kept, lease, until

NOTICE = Notice(session="lab", owner="ann@example.org", idle_s=3000.0, left_s=600.0)


class Sink:
    """Keeps what it is given; answers as it is told."""

    def __init__(self) -> None:
        self.got: list[str] = []
        self.status = 200


@pytest.fixture
def web() -> Iterator[tuple[Sink, str]]:
    sink = Sink()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sink.got.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(sink.status)
            self.end_headers()

        def log_message(self, *_args: Any) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield sink, f"http://127.0.0.1:{server.server_port}/hook"
        server.shutdown()


@pytest.fixture
def post_office() -> Iterator[tuple[Sink, int]]:
    """As much of RFC 5321 as one mail needs."""
    sink = Sink()

    class Handler(socketserver.StreamRequestHandler):
        def say(self, line: str) -> None:
            self.wfile.write(line.encode() + b"\r\n")

        def handle(self) -> None:
            self.say("220 sink")
            while word := self.rfile.readline().decode().strip():
                if word.upper() == "DATA":
                    self.say("354 go on")
                    lines = []
                    while (line := self.rfile.readline().decode().rstrip("\r\n")) != ".":
                        lines.append(line)
                    sink.got.append("\n".join(lines))
                    self.say("250 taken")
                elif word.upper().startswith("RCPT") and sink.status != 200:
                    self.say(f"{sink.status} no such person")
                elif word.upper() == "QUIT":
                    self.say("221 bye")
                    return
                else:
                    self.say("250 yes")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield sink, server.server_address[1]
        server.shutdown()


def mail(port: int) -> Mail:
    return Mail(host="127.0.0.1", port=port, sender="ebbtide@example.org", starttls=False)


def test_a_webhook_gets_what_happens_and_when(web: tuple[Sink, str]) -> None:
    sink, url = web
    Webhook(url).send(NOTICE)
    (body,) = map(json.loads, sink.got)
    assert (body["event"], body["session"], body["owner"], body["left_s"]) == (
        "session_idle",
        "lab",
        "ann@example.org",
        600.0,
    )
    sink.status = 500
    with pytest.raises(OSError, match="500"):
        Webhook(url).send(NOTICE)


def test_a_mail_says_what_to_do(post_office: tuple[Sink, int]) -> None:
    sink, port = post_office
    mail(port).send(NOTICE)
    (text,) = sink.got
    assert "To: ann@example.org" in text and "Subject: ebbtide: session lab is idle and will be parked in 600 s" in text
    assert "ebbtide resume lab" in text and "loses nothing" in text
    sink.status = 550
    with pytest.raises(smtplib.SMTPRecipientsRefused):
        mail(port).send(NOTICE)
    with pytest.raises(OSError, match="no mail address"):
        mail(port).send(Notice(session="lab", owner="ann", idle_s=1.0, left_s=1.0))


def test_one_way_that_works_is_enough_and_none_is_tried_again(web: tuple[Sink, str], tmp_path: Path) -> None:
    sink, url = web
    said: list[str] = []
    dead = mail(1)  # nobody listens there
    herald = OwnerNotices([dead, Webhook(url)], say=said.append, retry_s=0.0)
    herald.tell(NOTICE)
    until(herald.delivered)
    assert any("could not be told by mail" in line for line in said)
    herald.tell(NOTICE)
    assert len(sink.got) == 1, "who was told is not told again"
    herald.call_off()
    assert not herald.delivered()
    sink.status = 503
    herald.tell(NOTICE)
    until(lambda: len(sink.got) == 2)
    time.sleep(0.05)
    assert not herald.delivered()
    sink.status = 200
    until(lambda: herald.tell(NOTICE) or herald.delivered())  # type: ignore[func-returns-value]


class Quiet:
    """A command that does nothing; a line of it when it is told to, by a file."""

    PROGRAM = (
        "import os, sys, time\nwhile True:\n    if os.path.exists(sys.argv[1]):\n"
        "        for n in range(10**6): pass\n    time.sleep(0.02)"
    )


IDLE = IdleRules(idle_after_s=0.9, warn_before_s=0.5, cpu_quiet=0.2)


def idler(
    tmp_path: Path, herald: OwnerNotices, snapshots: FakeSnapshots | None = None, *, rules: IdleRules = IDLE
) -> Kept:
    import sys

    command = [sys.executable, "-I", "-S", "-c", Quiet.PROGRAM, str(tmp_path / "work")]
    return Kept(tmp_path, command, idle=rules, herald=herald, snapshots=snapshots).start()


def test_an_idle_session_is_announced_put_aside_parked_and_resumed_on_touch(
    tmp_path: Path, web: tuple[Sink, str]
) -> None:
    sink, url = web
    one = idler(tmp_path, OwnerNotices([Webhook(url)]))
    one.reaches(SessionState.ASIDE)
    one.until(lambda: one.wishes.heard, "its wish")
    assert len(sink.got) == 1 and one.wishes.heard[0].startswith("park: idle for")
    assert "its owner was told" in one.wishes.heard[0]
    assert one.gate.reports[-1].phase is RankPhase.RUNNING and one.holder() is not None, "the pool has not answered yet"
    one.gate.want(DesiredState.PARK)
    one.reaches(SessionState.PARKED)
    assert one.holder() is None and one.place.is_complete(1)
    one.place.touch.touch()
    one.until(lambda: one.wishes.heard[-1] == "resume: touched by its owner", "its wish")
    one.gate.want(DesiredState.RUN, lease(2))
    one.reaches(SessionState.RUNNING)
    one.gate.want(DesiredState.CANCEL)
    assert one.ends().end is End.CANCELLED


def test_touched_before_the_pool_has_answered_it_is_back_at_once(tmp_path: Path) -> None:
    one = idler(tmp_path, OwnerNotices(()))
    one.reaches(SessionState.ASIDE)
    one.place.touch.touch()
    one.reaches(SessionState.RUNNING)
    one.gate.want(DesiredState.CANCEL)
    one.ends()


def test_used_after_the_warning_it_stays(tmp_path: Path, web: tuple[Sink, str]) -> None:
    _, url = web
    herald = OwnerNotices([Webhook(url)])
    # Warned soon, then much time: on a busy machine a process that wants the CPU does not get it for a while.
    one = idler(tmp_path, herald, rules=IdleRules(idle_after_s=20.0, warn_before_s=19.6, cpu_quiet=0.05))
    one.until(herald.delivered, "the warning")
    (tmp_path / "work").touch()
    one.until(lambda: not herald.delivered(), "it to be called off")
    assert one.keeper.state is SessionState.RUNNING and not one.wishes.heard
    one.gate.want(DesiredState.CANCEL)
    one.ends()


def test_an_idle_session_that_cannot_be_imaged_is_neither_parked_nor_killed(tmp_path: Path) -> None:
    snapshots = FakeSnapshots(tmp_path / "run" / "session")
    snapshots.refuse = "a socket"
    one = idler(tmp_path, OwnerNotices(()), snapshots)
    one.until(lambda: "stays on its slot: a socket" in str(one.place.read("standing")), "the reason")
    time.sleep(0.3)
    assert one.keeper.state is SessionState.RUNNING and not one.wishes.heard
    assert snapshots.calls.count("image 0001") == 1, "it is not tried again and again"
    one.gate.want(DesiredState.CANCEL)
    one.ends()
