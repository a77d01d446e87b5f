"""Telling a session's owner that it is about to be put aside: by webhook, by mail, or both.

It is told when one of the ways has taken the notice in. Sending is a thread's work: a mail server that hangs must not
keep the session's supervisor from its orders.

Not guaranteed: that anybody reads it; and that an owner gets it once only, where a server takes it in and its answer is
lost.
"""

import json
import logging
import smtplib
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from pathlib import Path
from typing import Protocol

SEND_S = 10.0  # per way; servers answer within a second or are in trouble
RETRY_S = 30.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One warning. Seconds."""

    session: str
    owner: str
    idle_s: float
    left_s: float  # until it is put aside

    def subject(self) -> str:
        """One line."""
        return f"session {self.session} is idle and will be parked in {self.left_s:.0f} s"

    def text(self) -> str:
        """What has happened, what will, and what to do about it."""
        return (
            f"Session {self.session} of {self.owner} has used neither CPU nor GPU for {self.idle_s:.0f} s.\n"
            f"In {self.left_s:.0f} s it will be parked: it loses nothing and its GPU goes to others.\n\n"
            f"To keep it: use it, or touch its file `touch` (see `ebbtide sessions`).\n"
            f"To have it back later: `ebbtide resume {self.session}`.\n"
        )


class Way(Protocol):
    """One way to reach people."""

    def send(self, notice: Notice) -> None:
        """Blocks at most some `SEND_S`.

        Raises:
            OSError: it was not taken in (also what smtplib and urllib raise).
        """


@dataclass(frozen=True, slots=True)
class Webhook:
    """POSTs the notice as JSON; any 2xx counts as taken in."""

    url: str

    def send(self, notice: Notice) -> None:
        """See `Way`."""
        body = json.dumps({"event": "session_idle", **asdict(notice), "text": notice.subject()}).encode()
        request = urllib.request.Request(
            self.url, data=body, headers={"Content-Type": "application/json"}, method="POST"
        )
        with urllib.request.urlopen(request, timeout=SEND_S):
            return


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """Sends a mail to the owner, where the owner is an address."""

    host: str
    port: int
    sender: str
    user: str = ""
    password_file: Path | None = None
    starttls: bool = True

    def send(self, notice: Notice) -> None:
        """See `Way`."""
        if "@" not in notice.owner:
            raise OSError(f"the owner {notice.owner!r} is no mail address: `ebbtide run --owner NAME@HOST`")
        mail = EmailMessage()
        mail["Subject"], mail["From"], mail["To"] = f"ebbtide: {notice.subject()}", self.sender, notice.owner
        mail["Date"], mail["Message-ID"] = formatdate(), make_msgid(domain=self.sender.rpartition("@")[2])
        mail.set_content(notice.text())
        with smtplib.SMTP(self.host, self.port, timeout=SEND_S) as server:
            if self.starttls:
                server.starttls()
            if self.user:
                password = self.password_file.read_text().strip() if self.password_file is not None else ""
                server.login(self.user, password)
            server.send_message(mail)


class OwnerNotices:
    """Sends one notice at a time, by every way, in a thread of its own; tries again what nobody took in."""

    def __init__(
        self, ways: Sequence[Way], *, say: Callable[[str], None] = lambda _line: None, retry_s: float = RETRY_S
    ) -> None:
        """``ways`` empty: nobody is told; the notice stands in the session's own facts."""
        self._ways, self._say, self._retry_s = tuple(ways), say, retry_s
        self._lock = threading.Lock()
        self._sending: threading.Thread | None = None
        self._sent_s = float("-inf")
        self._round = 0  # a notice that was called off is not delivered any more, whatever its thread still does
        self._delivered = False

    def tell(self, notice: Notice) -> None:
        """Send it unless that goes on already or was just tried; never blocks."""
        with self._lock:
            busy = self._sending is not None and self._sending.is_alive()
            if busy or self._delivered or time.monotonic() - self._sent_s < self._retry_s:
                return
            self._sent_s = time.monotonic()
            self._say(notice.subject())
            if not self._ways:
                self._delivered = True
                return
            self._sending = threading.Thread(target=self._send, args=(notice, self._round), name="notice", daemon=True)
            self._sending.start()

    def delivered(self) -> bool:
        """Whether the present notice was taken in."""
        with self._lock:
            return self._delivered

    def call_off(self) -> None:
        """The next notice is another one."""
        with self._lock:
            self._round += 1
            self._delivered, self._sent_s = False, float("-inf")

    def _send(self, notice: Notice, round_: int) -> None:
        for way in self._ways:
            try:
                way.send(notice)
            except (OSError, ValueError) as error:  # smtplib's and urllib's are OSErrors; ValueError: a damaged URL
                _log.warning("%s could not be told: %s", notice.owner, error)
                self._say(f"its owner could not be told by {type(way).__name__.lower()}: {error}")
                continue
            with self._lock:
                self._delivered = self._delivered or self._round == round_
