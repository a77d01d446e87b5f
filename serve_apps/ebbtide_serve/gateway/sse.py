"""Cutting a stream of bytes into whole server-sent events.

Only whole events are passed on, so that an error event can follow when a replica dies in the middle of one; otherwise
the client would read half a JSON text with our error glued to it.
"""

import re

# An event longer than this is passed on in pieces: no token's event comes near it, and memory must be bounded.
EVENT_MAX_BYTES = 1 << 20
_ERROR = re.compile(rb'^data:\s*\{\s*"error"\s*:')
_DONE = re.compile(rb"^data:\s*\[DONE\]")
# Quotes inside generated text are escaped in JSON, so this finds only the field itself.
_TOTAL_TOKENS = re.compile(rb'"total_tokens"\s*:\s*(\d{1,12})')


class EventSplitter:
    """Feed it bytes, get whole events; knows how the stream ended."""

    def __init__(self) -> None:
        self._rest = b""
        self._last = b""
        self.events = 0

    def feed(self, data: bytes) -> bytes:
        """All events that are complete by now, as one piece of bytes; may be empty."""
        data = self._rest + data
        end = max(data.rfind(b"\n\n") + 2, data.rfind(b"\r\n\r\n") + 4)
        if end < 4 and not data.startswith(b"\n\n"):  # neither was found: -1 + 4 at most
            end = 0
        if end == 0 and len(data) > EVENT_MAX_BYTES:
            end = len(data)
        whole, self._rest = data[:end], data[end:]
        if whole:
            parts = [part for part in re.split(rb"\r?\n\r?\n", whole) if part]
            self.events += len(parts)
            self._last = parts[-1] if parts else self._last
        return whole

    @property
    def finished(self) -> bool:
        """Whether the last whole event was ``[DONE]``."""
        return _DONE.match(self._last) is not None

    @property
    def ended_in_error(self) -> bool:
        """Whether the last whole event already told the client of an error."""
        return _ERROR.match(self._last) is not None


def total_tokens(data: bytes) -> int | None:
    """The largest ``usage.total_tokens`` in (a part of) an answer; None: there is none."""
    found = [int(number) for number in _TOTAL_TOKENS.findall(data)]
    return max(found) if found else None
