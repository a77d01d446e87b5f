"""The engine port: all that the serving room wants of an LLM engine.

Requests come in as the bytes of an OpenAI request body and leave as the bytes of an OpenAI answer, because the engine
behind the port (vLLM) brings OpenAI's protocol with it and parsing twice would cost time to first token.

Hanging up is cancellation: whoever cancels ``handle`` or closes a stream's iterator makes the engine abort that
generation. Not guaranteed: that the abort has reached the engine when the cancellation returns; it follows within
one engine step.
"""

import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from ebbtide_serve.loading.settings import LoadSettings


class Route(Enum):
    """The requests that an engine answers; the values are the paths."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"


@dataclass(frozen=True, slots=True)
class JsonReply:
    """A whole answer, good or bad: an HTTP status and a JSON body in OpenAI's shape."""

    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class StreamReply:
    """A begun stream of server-sent events; each item is one or more whole events. Close it to hang up."""

    events: AsyncGenerator[bytes, None]


Reply = JsonReply | StreamReply


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The engine's load now; ``totals`` only grow."""

    running: int = 0  # sequences in the batch
    waiting: int = 0  # sequences queued
    kv_usage: float = 0.0  # share of the KV cache in use, 0..1
    preemptions: int = 0  # sequences thrown out of the batch so far, for lack of KV cache
    generated_tokens: int = 0  # so far


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What an engine is started with. ``args`` go to the engine as they are."""

    model_name: str  # the model's name in the API
    model_dir: str
    args: Mapping[str, object] = field(default_factory=dict)
    load_format: str = ""  # how weights are read; "": in the engine's own way
    weights: LoadSettings | None = None  # the stored model that ``model_dir`` is of
    sleeps: bool = False  # it will be told to sleep, if it can (`sleep`): it may have to be started so
    why_own: str = field(default="", compare=False)  # told where the engine reads in its own way: why so


class Engine(Protocol):
    """One engine in one process of ours, which may have processes of its own."""

    async def start(self) -> None:
        """Bring it up; it answers from then on.

        Raises:
            EngineRefused: it does not take what it was told: another start can only end alike, on any slot.
            EngineFailed: it does not start; nothing of it is left running.
        """

    async def handle(self, route: Route, body: bytes) -> Reply:
        """Answer one request.

        Raises:
            EngineFailed: the engine is dead. Bad requests are replies, not errors.
        """

    def stats(self) -> EngineStats:
        """The load now; cheap enough to ask ten times a second."""

    async def check_health(self) -> None:
        """Raises EngineFailed if it cannot answer requests any more."""

    async def stop(self, timeout_s: float) -> None:
        """Abort what runs and end all its processes, by force after ``timeout_s``. Safe to call twice."""


def openai_error(message: str, kind: str, status: int, *, code: str | None = None) -> dict[str, object]:
    """An error body as OpenAI's clients expect it; ``code`` is a word for programs, else the status."""
    return {"error": {"message": message, "type": kind, "param": None, "code": code or status}}


def error_reply(message: str, kind: str, status: int, *, code: str | None = None) -> JsonReply:
    """A whole answer that says what went wrong."""
    return JsonReply(status, json.dumps(openai_error(message, kind, status, code=code)).encode())


def error_event(message: str, kind: str = "server_error", status: int = 500) -> bytes:
    """The event that ends a begun stream which cannot go on: never silence, and never a ``[DONE]`` after it."""
    return b"data: " + json.dumps(openai_error(message, kind, status)).encode() + b"\n\n"
