"""The helper's socket: who may ask, how long a question may be and take, and an answer to each in time.

One request for a connection. Each has a thread; the work has another one, so that the asker gets an answer at the
deadline while the work goes on: nothing that was begun is ever stopped half way.
"""

import os
import queue
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path

from ebbtide.helper.errors import Busy, HelperError, Malformed, OutcomeUnknown, Refused
from ebbtide.helper.protocol.line_socket import Ended, LineTooLong, Peer, TooSlow, part, peer_of, read_line, send_line
from ebbtide.helper.protocol.requests import LINE_LIMIT_BYTES, Reply, Request, parse
from ebbtide.helper.service import Service
from ebbtide.storage.errors import StorageError

LINE_WAIT_S = 5.0  # our client sends its line at once
MOST_CONNECTIONS = 64  # a node has some 8 GPUs and a few sessions; each supervisor asks one thing at a time
_BACKLOG = 64
# How long somebody who still talks is listened to after the answer: a request that was too long, four times.
_PARTING_BYTES, _PARTING_S = 4 * LINE_LIMIT_BYTES, 0.5
JOURNAL_FAILED = 3  # exit code


class Server:
    """Answers until the process ends."""

    def __init__(self, service: Service, path: Path, uids: frozenset[int], *, line_wait_s: float = LINE_WAIT_S) -> None:
        """Bind the socket; a dead helper's is replaced (the journal's lock says that it is dead).

        Args:
            service: does the work.
            path: of the socket; made with mode 0600, owned by the peer's user if that is another one.
            uids: who may ask.
            line_wait_s: how long a request, and the taking of its answer, may be on the way.
        """
        self._service, self._uids, self._line_wait_s = service, uids, line_wait_s
        self._seats = threading.BoundedSemaphore(MOST_CONNECTIONS)
        with suppress(FileNotFoundError):
            path.unlink()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            self._socket.bind(str(path))
        finally:
            os.umask(before)
        for uid in uids - {os.geteuid()}:
            os.chown(path, uid, -1)
        self._socket.listen(_BACKLOG)

    def serve(self) -> None:
        """Answer, for ever."""
        while True:
            connection, _ = self._socket.accept()
            if not self._seats.acquire(blocking=False):
                self._turn_away(connection)
                continue
            threading.Thread(target=self._attend, args=(connection,), name="asker", daemon=True).start()

    def _turn_away(self, connection: socket.socket) -> None:
        busy = Busy(f"{MOST_CONNECTIONS} askers are waiting already", "ask again later")
        with connection, suppress(OSError, TooSlow):
            send_line(connection, Reply.refusing(busy).encode(), 0.1)

    def _attend(self, connection: socket.socket) -> None:
        try:
            with connection, suppress(OSError, TooSlow, Ended):
                send_line(connection, self._reply(connection).encode(), self._line_wait_s)
                part(connection, _PARTING_BYTES, _PARTING_S)
        finally:
            self._seats.release()

    def _reply(self, connection: socket.socket) -> Reply:
        peer = peer_of(connection)
        try:
            if peer.uid not in self._uids:
                raise Refused(f"user {peer.uid} may not ask this helper", f"ask as user {min(self._uids)}")
            try:
                line = read_line(connection, LINE_LIMIT_BYTES, self._line_wait_s)
            except LineTooLong as error:
                raise Malformed(f"the request has {error}", "name fewer workloads at once") from None
            except TooSlow as error:
                raise Malformed(f"{error}", "send the request at once") from None
            return self._in_time(peer, parse(line))
        except HelperError as error:
            return Reply.refusing(error)

    def _in_time(self, peer: Peer, request: Request) -> Reply:
        answers: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        threading.Thread(
            target=lambda: answers.put(self._work(peer, request)), name=f"verb-{request.verb}", daemon=True
        ).start()
        try:
            return answers.get(timeout=request.deadline_s)
        except queue.Empty:
            raise OutcomeUnknown(
                f"{request.verb} goes on after {request.deadline_s:g} s", "look with state until it is over"
            ) from None

    def _work(self, peer: Peer, request: Request) -> Reply:
        try:
            return Reply(ok=True, result=self._service.answer(peer, request))
        except HelperError as error:
            return Reply.refusing(error)
        except (StorageError, OSError) as error:
            # Of a check: what fails after an operation has begun is made `Undone` where it was begun.
            return Reply.refusing(Refused(str(error), "mend what the message names"))
        except Exception as error:  # noqa: BLE001 - the outermost frame of all work
            # The journal could not be written, or a fault of ours: what is known here may not be what is on the disk.
            # The next helper reads back what is, so this one ends at once.
            print(
                f"ebbtide helper: {request.verb} failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True
            )
            os._exit(JOURNAL_FAILED)
