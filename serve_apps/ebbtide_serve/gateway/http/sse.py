"""Cutting a stream of bytes into whole server-sent events.

Only whole events are passed on, so that an error event can follow when a replica dies in the middle of one; otherwise
the client would read half a JSON text with our error glued to it.
"""

import re

# An event longer than this is passed on in pieces: no token's event comes near it, and memory must be bounded.
EVENT_MAX_BYTES = 1 << 20
_END = re.compile(rb"\r?\n\r?\n")
_ERROR = re.compile(rb'^data:\s*\{\s*"error"\s*:')
_DONE = re.compile(rb"^data:\s*\[DONE\]")
# Quotes inside generated text are escaped in JSON, so this finds only the field itself.
_TOTAL_TOKENS = re.compile(rb'"total_tokens"\s*:\s*(\d{1,12})')


class EventSplitter:
    """Feed it bytes, get whole events; knows how the stream ended."""

    def __init__(self) -> None:
        self._rest = b""
        self._last = b""  # the last piece that was passed on
        self.events = 0

    def feed(self, data: bytes) -> bytes:
        """All events that are complete by now, as one piece of bytes; may be empty."""
        if self._rest:
            data = self._rest + data
        if b"\r" in data:
            return self._feed_with_carriage_returns(data)
        if data.endswith(b"\n\n"):  # nearly always: a replica writes whole events
            whole, self._rest = data, b""
        else:
            end = data.rfind(b"\n\n") + 2
            # guard: no half event is passed on
            whole, self._rest = self._cut(data, end if end > 1 else 0)
        self.events += whole.count(b"\n\n")
        self._last = whole or self._last
        return whole

    def _feed_with_carriage_returns(self, data: bytes) -> bytes:
        ends = [match.end() for match in _END.finditer(data)]
        whole, self._rest = self._cut(data, ends[-1] if ends else 0)
        self.events += len(ends)
        self._last = whole or self._last
        return whole

    def _cut(self, data: bytes, end: int) -> tuple[bytes, bytes]:
        if end == 0 and len(data) > EVENT_MAX_BYTES:  # guard: an event that is kept back is bounded in size
            end = len(data)
        return data[:end], data[end:]

    def _last_event(self) -> bytes:
        return _END.split(self._last.rstrip(b"\r\n"))[-1]

    @property
    def finished(self) -> bool:
        """Whether the last whole event was ``[DONE]``."""
        return _DONE.match(self._last_event()) is not None

    @property
    def ended_in_error(self) -> bool:
        """Whether the last whole event already told the client of an error."""
        return _ERROR.match(self._last_event()) is not None


def total_tokens(data: bytes) -> int | None:
    """The largest ``usage.total_tokens`` in (a part of) an answer; None: there is none."""
    found = [int(number) for number in _TOTAL_TOKENS.findall(data)]
    return max(found) if found else None
