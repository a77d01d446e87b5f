"""Whether the node's helper can take processes off their GPUs, by its own word.

A socket file tells nothing: its helper may have died, and one that lives may have found no driver. So it is asked, with
a short deadline, in a thread of its own: whoever looks at slot locks fifty times a second cannot wait for it.

The question is written out here, since the helper's own client is a floor above (`ebbtide.helper.protocol.requests`).
"""

import json
import logging
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE_S = 2.0  # it answers within milliseconds, also while it freezes somebody
_QUESTION = b'{"verb": "facts"}\n'
_REPLY_LIMIT_BYTES = 4 << 20  # as its client allows
_PART_BYTES = 1 << 16
_log = logging.getLogger(__name__)


class HelperStatus:
    """What the helper at a socket last said of itself. Used by one thread."""

    def __init__(self, path: Path, *, why_not: Callable[[Path], str] | None = None) -> None:
        """Nothing is asked yet; ``why_not`` asks, and is `ask` if None."""
        self._path, self._why_not = path, why_not or ask
        self._asking: threading.Thread | None = None
        self._can_freeze = False
        self._said = ""

    @property
    def can_freeze(self) -> bool:
        """By the last answer; False until there is one."""
        return self._can_freeze

    def ask(self) -> None:
        """Ask anew, unless an answer is still awaited; returns at once."""
        if self._asking is not None and self._asking.is_alive():
            return
        if not self._path.is_socket():
            self._can_freeze, self._said = False, ""
            return
        asking = threading.Thread(target=self._ask, name="helper-word", daemon=True)
        try:
            asking.start()
        except RuntimeError as error:  # "can't start new thread"
            self._note(str(error))
        else:
            self._asking = asking

    def wait(self) -> None:
        """Until the question that is under way is answered, or given up."""
        if self._asking is not None:
            self._asking.join()

    def _ask(self) -> None:
        self._note(self._why_not(self._path))

    def _note(self, why_not: str) -> None:
        self._can_freeze = not why_not
        if why_not and why_not != self._said:
            _log.warning("the helper at %s takes nobody off a GPU: %s", self._path, why_not)
        self._said = why_not


def ask(path: Path, patience_s: float = PATIENCE_S) -> str:
    """Why the helper there can freeze nobody; empty if it can."""
    try:
        answer = json.loads(_answer(path, patience_s))
        return str(answer["result"]["driver"]["why_not_checkpoint"])
    except OSError as error:
        return f"it does not answer ({error})"
    except (ValueError, KeyError, TypeError):
        return "it does not say what its driver can do"


def _answer(path: Path, patience_s: float) -> bytes:
    end_s = time.monotonic() + patience_s
    got = bytearray()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(patience_s)
        connection.connect(str(path))
        connection.sendall(_QUESTION)
        while b"\n" not in got and len(got) <= _REPLY_LIMIT_BYTES:
            if (left_s := end_s - time.monotonic()) <= 0:
                raise TimeoutError(f"not within {patience_s:g} s")
            connection.settimeout(left_s)
            part = connection.recv(_PART_BYTES)
            if not part:
                raise ConnectionError("closed before the answer was there")
            got += part
    return bytes(got)
