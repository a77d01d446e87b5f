"""What the gateway counts of each request, and what a scrape shows.

Bounded whatever clients send: the label ``model`` is an endpoint, ``key`` the name of a key, ``code`` one of the
statuses that a gateway gives; everything else is "-". Per token nothing is done here: a stream is booked once, when it
has ended.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ebbtide.client.messages import Traffic
from ebbtide.telemetry import gateway as names
from ebbtide.telemetry.metric_family import UNKNOWN, Family, Sample
from ebbtide.telemetry.registry import Metrics
from ebbtide_serve.gateway.http.sse import EventSplitter

HUNG_UP = 499
COUNTED = (
    names.REQUESTS,
    names.BROKEN_STREAMS,
    names.RETRIES,
    names.HOLD_TIME,
    names.TTFT,
    names.TPOT,
    names.DURATION,
    names.PROMPT_TOKENS,
    names.GENERATED_TOKENS,
    names.ARBITER_ANSWERED,
)
READ = (names.HELD, names.HELD_BYTES, names.OLDEST_HELD, names.INFLIGHT, names.SEATS, names.STOPPING)
# Quotes inside generated text are escaped in JSON, so these find only the fields themselves.
_PROMPT = re.compile(rb'"prompt_tokens"\s*:\s*(\d{1,9})')
_GENERATED = re.compile(rb'"completion_tokens"\s*:\s*(\d{1,9})')


@dataclass(frozen=True, slots=True)
class Answer:
    """A replica's answer."""

    prompt: int  # tokens
    generated: int  # tokens; where the replica does not say, events
    counted: bool  # the replica says
    tpot_s: float | None  # of a stream that came to its end: mean time between two tokens


@dataclass(slots=True)
class Account:
    """What one request came to; its exchange fills it in. Times are of one monotonic clock, in seconds."""

    key: str
    model: str
    body_bytes: int
    arrived_s: float
    status: int = HUNG_UP
    lacked_s: float = 0.0
    retries: int = 0
    first_s: float = 0.0  # of an answer with status 200; 0: none came
    stream: EventSplitter | None = None
    broken: bool = False
    before_last: bytes = b""  # the last two pieces of the answer: usage, if any, is in one of them
    last: bytes = b""

    def piece(self, data: bytes) -> None:
        """A piece of the answer was passed on."""
        self.before_last, self.last = self.last, data

    def answer(self, now_s: float, *, estimate: int) -> Answer | None:
        """What a replica answered, now that it has ended; None: nothing with status 200.

        ``estimate``: tokens of the prompt, where the answer does not say.
        """
        if not self.first_s:
            return None
        counted, stream = usage(self.before_last + self.last), self.stream
        # The last event of a whole stream is [DONE], which is no token.
        events = stream.events - stream.finished if stream else 0
        prompt, generated = counted or (estimate, events)
        ended = stream is not None and stream.finished and generated > 1
        return Answer(prompt, generated, bool(counted), (now_s - self.first_s) / (generated - 1) if ended else None)


def usage(data: bytes) -> tuple[int, int] | None:
    """Tokens of prompt and answer as the replica counted them; None: ``data`` does not say."""
    prompt, generated = _PROMPT.findall(data), _GENERATED.findall(data)
    if not prompt:
        return None
    return int(prompt[-1]), int(generated[-1]) if generated else 0


class Meter:
    """The gateway's metrics. Lives in its event loop."""

    def __init__(self, now: Callable[[], Iterable[tuple[str, Traffic, int]]], stopping: Callable[[], bool]) -> None:
        """Args:
        now: for each endpoint its name, its traffic and how many seats it can be sent to.
        stopping: whether the gateway ends.
        """
        self._now, self._stopping = now, stopping
        self._keys: frozenset[str] = frozenset()
        self._models: frozenset[str] = frozenset()
        self.metrics = Metrics(COUNTED, [(READ, self._read)])
        self._answered = self.metrics.child(names.ARBITER_ANSWERED)

    def know(self, keys: Iterable[str], models: Iterable[str]) -> None:
        """The names that may become labels from now on; series of others go."""
        self._keys, self._models = frozenset(keys), frozenset(models)
        self.metrics.keep(names.REQUESTS, "key", {*self._keys, UNKNOWN})
        for family in COUNTED:
            if "model" in family.labels:
                self.metrics.keep(family, "model", {*self._models, UNKNOWN})

    def refused(self, key: str, model: str, status: int) -> None:
        """A request was answered without an exchange: refused, or about models."""
        self._count(names.REQUESTS, self._key(key), self._model(model), str(status))

    def booked(self, account: Account, now_s: float, answer: Answer | None) -> None:
        """An exchange has ended.

        Args:
            account: what came of it.
            now_s: by the account's clock.
            answer: `Account.answer` then; None: there was none with status 200.
        """
        model = self._model(account.model)
        self._count(names.REQUESTS, self._key(account.key), model, str(account.status))
        self._observe(names.DURATION, now_s - account.arrived_s, model)
        if account.lacked_s:
            self._observe(names.HOLD_TIME, account.lacked_s, model)
        if account.retries:
            self._count(names.RETRIES, model, value=account.retries)
        if account.broken:
            self._count(names.BROKEN_STREAMS, model)
        if answer is None:
            return
        if account.stream:
            self._observe(names.TTFT, max(0.0, account.first_s - account.arrived_s - account.lacked_s), model)
        source = "usage" if answer.counted else "estimate"
        self._count(names.PROMPT_TOKENS, model, source, value=answer.prompt)
        self._count(names.GENERATED_TOKENS, model, source, value=answer.generated)
        if answer.tpot_s is not None:
            self._observe(names.TPOT, answer.tpot_s, model)

    def arbiter_answered(self, epoch_s: float) -> None:
        """The arbiter answered a report."""
        self._answered.set(epoch_s)

    def _read(self) -> Iterator[Sample]:
        for model, traffic, seats in self._now():
            labels = (model,)
            yield Sample(names.HELD, traffic.held, labels)
            yield Sample(names.HELD_BYTES, traffic.held_bytes, labels)
            yield Sample(names.OLDEST_HELD, traffic.oldest_held_s, labels)
            yield Sample(names.INFLIGHT, traffic.inflight, labels)
            yield Sample(names.SEATS, seats, labels)
        yield Sample(names.STOPPING, float(self._stopping()))

    def _key(self, name: str) -> str:
        return name if name in self._keys else UNKNOWN

    def _model(self, name: str) -> str:
        return name if name in self._models else UNKNOWN

    def _count(self, family: Family, *labels: str, value: float = 1) -> None:
        self.metrics.add(Sample(family, value, labels))

    def _observe(self, family: Family, value: float, *labels: str) -> None:
        self.metrics.add(Sample(family, value, labels))
