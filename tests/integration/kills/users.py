"""A steady trickle of users who ask for streams and look closely at what they get.

Each answer must be exactly what the engine gives: the words ``t0 t1 ...`` of the process engine (or, where the text
is a model's own, so many tokens). A begun stream must end by ``[DONE]`` or by an error event; whoever hears nothing for
:data:`SILENCE_S` was left hanging. A connection that breaks is told apart from one that ends in good order too early:
only a user whose gateway was killed may see the first.
"""

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum

import aiohttp

SILENCE_S = 60.0  # longer than any recovery that a request may be held for (the gateway's own bound is 300 s)
MODEL = "tiny"


class Saw(Enum):
    """What became of one request."""

    OK = "ok"
    HELD = "ok, held"  # more than HELD_S before the first byte
    REFUSED = "refused"  # 429 or 503 with Retry-After: nothing was begun
    ERROR = "error"  # any other error status before a byte of the stream
    ERROR_EVENT = "error event"  # a begun stream that ended by one
    UNREACHABLE = "unreachable"  # no connection, or it broke before the answer's head
    CUT = "cut"  # a begun stream whose connection broke: the user's client sees an error
    SILENT = "silent end"  # a begun stream that ended in good order without [DONE] or an error event
    HANG = "hang"
    WRONG = "wrong content"


HELD_S = 1.0
BROKEN_PROMISES = frozenset({Saw.SILENT, Saw.HANG, Saw.WRONG})


@dataclass(frozen=True, slots=True)
class Answer:
    """One request from its user's side. Times are ``time.time()``."""

    saw: Saw
    asked_s: float
    first_s: float  # seconds until the first byte of the stream; 0: there was none
    took_s: float
    status: int
    words: int
    detail: str = ""


def judged(text: str, tokens: int, *, exact: bool) -> str:
    """What is wrong with a whole answer's text; empty if nothing is."""
    if not exact:
        return ""
    expected = " ".join(f"t{number}" for number in range(tokens))
    return "" if text.split() == expected.split() else f"expected {expected[:60]!r}..., got {text[:60]!r}..."


def prefix(text: str, *, exact: bool) -> str:
    """What is wrong with the text of an answer that was broken off; empty if it is a beginning of the right one."""
    words = text.split()
    return "" if not exact or words == [f"t{n}" for n in range(len(words))] else f"begins with {text[:60]!r}"


@dataclass
class _Heard:
    """What has come of one answer so far."""

    started_s: float = field(default_factory=time.monotonic)
    first_s: float = 0.0
    text: str = ""
    usage: int = 0
    error: str = ""
    done: bool = False

    def line(self, line: bytes) -> None:
        """One line of the stream.

        Raises:
            ValueError: it is not what it should be.
        """
        if not line.startswith(b"data: "):
            return
        self.first_s = self.first_s or time.monotonic() - self.started_s
        if line.strip() == b"data: [DONE]":
            self.done = True
            return
        event = json.loads(line[6:])
        if "error" in event:
            self.error = json.dumps(event["error"])[:200]
            return
        self.usage = (event.get("usage") or {}).get("completion_tokens", self.usage)
        self.text += "".join((choice.get("delta") or {}).get("content") or "" for choice in event["choices"])

    def end(self, tokens: int, *, exact: bool) -> tuple[Saw, str]:
        """What to make of a connection that ended in good order."""
        if self.error:
            return Saw.ERROR_EVENT, self.error
        if not self.done:
            return Saw.SILENT, "the stream ended without [DONE]"
        wrong = judged(self.text, tokens, exact=exact)
        if wrong or self.usage != tokens:
            return Saw.WRONG, wrong or f"usage says {self.usage} tokens, not {tokens}"
        return (Saw.HELD if self.first_s > HELD_S else Saw.OK), ""


def question(tokens: int, model: str = MODEL) -> dict[str, object]:
    """The body of a request for so many tokens."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": "tell me"}],
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
    }


async def ask(
    http: aiohttp.ClientSession, url: str, tokens: int, *, model: str = MODEL, exact: bool = True, key: str = "none"
) -> Answer:
    """Ask once and listen to the end."""
    asked_s, heard, status = time.time(), _Heard(), 0
    try:
        headers = {"authorization": f"Bearer {key}"}
        async with http.post(f"{url}/v1/chat/completions", json=question(tokens, model), headers=headers) as reply:
            status = reply.status
            if status == 200:
                async for line in reply.content:
                    heard.line(line)
                saw, detail = heard.end(tokens, exact=exact)
            else:
                detail = (await reply.text())[:200]
                saw = Saw.REFUSED if status in (429, 503) and "retry-after" in reply.headers else Saw.ERROR
    except aiohttp.ConnectionTimeoutError:
        saw, detail = Saw.UNREACHABLE, "no connection within 5 s"
    except TimeoutError:
        saw, detail = Saw.HANG, f"nothing for {SILENCE_S:g} s"
    except (aiohttp.ClientError, OSError) as error:
        saw, detail = Saw.CUT if heard.first_s else Saw.UNREACHABLE, repr(error)[:200]
    except (ValueError, KeyError, TypeError) as error:
        saw, detail = Saw.WRONG, f"not OpenAI's form: {error!r}"
    wrong = prefix(heard.text, exact=exact)
    if wrong and saw is not Saw.WRONG:
        saw, detail = Saw.WRONG, f"{wrong} ({saw.value}: {detail})"
    took_s = time.monotonic() - heard.started_s
    return Answer(saw, asked_s, heard.first_s, took_s, status, len(heard.text.split()), detail)


@dataclass
class Users:
    """Users in an event loop and a thread of their own; made by :func:`users`."""

    url: str
    exact: bool = True
    key: str = "none"
    answers: list[Answer] = field(default_factory=list)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    _to_send: int = 0
    _trickles: list["asyncio.Task[None]"] = field(default_factory=list)
    _asking: dict["asyncio.Task[None]", None] = field(default_factory=dict)  # oldest first

    def ask(self, *, tokens: int = 20, count: int = 1, model: str = MODEL) -> None:
        """So many users ask once, now."""
        self._to_send += count
        self._loop.call_soon_threadsafe(self._send_counted, tokens, count, model)

    def trickle(self, *, every_s: float, tokens: int = 20) -> None:
        """From now on one more user asks every ``every_s`` seconds, until :meth:`ebb`."""

        async def keep_asking() -> None:
            while True:
                self._send(tokens, 1, MODEL)
                await asyncio.sleep(every_s)

        self._loop.call_soon_threadsafe(lambda: self._trickles.append(self._loop.create_task(keep_asking())))

    def ebb(self) -> None:
        """Nobody new asks; who has asked gets the answer."""

        def end() -> None:
            for task in self._trickles:
                task.cancel()
            self._trickles.clear()

        self._loop.call_soon_threadsafe(end)

    def hang_up(self, count: int) -> None:
        """The so many oldest of those who wait or listen close their connections; they are not counted."""

        def close() -> None:
            for task in list(self._asking)[:count]:
                task.cancel()

        self._loop.call_soon_threadsafe(close)

    @property
    def waiting(self) -> int:
        """Requests that are not over."""
        return len(self._asking) + self._to_send

    def settled(self, limit_s: float) -> bool:
        """Wait until nobody waits any more."""
        deadline_s = time.monotonic() + limit_s
        while self.waiting and time.monotonic() < deadline_s:
            time.sleep(0.05)
        return not self.waiting

    def since(self, at_s: float) -> list[Answer]:
        """Answers to requests that were not over at ``at_s``, or came later."""
        return [answer for answer in list(self.answers) if answer.asked_s + answer.took_s >= at_s]

    def _send_counted(self, tokens: int, count: int, model: str) -> None:
        self._send(tokens, count, model)
        self._to_send -= count

    def _send(self, tokens: int, count: int, model: str) -> None:
        for _ in range(count):
            task = self._loop.create_task(self._one(tokens, model))
            self._asking[task] = None
            task.add_done_callback(lambda done: self._asking.pop(done, None))

    async def _one(self, tokens: int, model: str) -> None:
        # A connection each: a kept-alive one to a gateway that has just died is the client library's business.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5.0, sock_read=SILENCE_S)
        async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(force_close=True)) as http:
            self.answers.append(await ask(http, self.url, tokens, model=model, exact=self.exact, key=self.key))


@contextmanager
def users(url: str, *, exact: bool = True, key: str = "none") -> Iterator[Users]:
    """Users of the gateway at ``url``."""
    ours = Users(url, exact, key)
    thread = threading.Thread(target=ours._loop.run_forever, name="users", daemon=True)
    thread.start()
    try:
        yield ours
    finally:
        ours.ebb()
        ours.hang_up(1_000_000)
        time.sleep(0.1)
        ours._loop.call_soon_threadsafe(ours._loop.stop)
        thread.join(10)


def counted(answers: Iterable[Answer]) -> dict[str, int]:
    """How many users saw what."""
    return dict(Counter(answer.saw.value for answer in answers).most_common())
