"""Answers in OpenAI's shape made of the words ``t0 t1 t2 ...``, one per token; for engines without a model.

The frame of an event is made once per request, so that a fast fake costs the process around it next to nothing.
"""

import json
from dataclasses import dataclass
from typing import Any

from ebbtide_serve.engine.port import JsonReply, Route, error_reply

DONE = b"data: [DONE]\n\n"
_WORD = "@@"  # stands for the word in a frame; no frame holds it otherwise


@dataclass(frozen=True, slots=True)
class Asked:
    """What such an engine needs to know of a request."""

    route: Route
    model: str
    prompt: str
    prompt_tokens: int
    tokens: int
    stream: bool
    include_usage: bool

    def usage(self) -> dict[str, int]:
        """As if every token had been generated."""
        total = self.prompt_tokens + self.tokens
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.tokens, "total_tokens": total}


def parse_request(route: Route, body: bytes, *, model: str, max_model_len: int) -> Asked | JsonReply:
    """The request, or the answer to a bad one."""
    try:
        raw = json.loads(body)
        prompt = raw["prompt"] if route is Route.COMPLETIONS else raw["messages"][-1]["content"]
        wanted = raw.get("max_completion_tokens") or raw.get("max_tokens") or 16
        options = raw.get("stream_options") or {}
        prompt_tokens = len(prompt.split()) if isinstance(prompt, str) else len(prompt or ())
        request = Asked(
            route=route,
            model=raw["model"],
            prompt=str(prompt),
            prompt_tokens=prompt_tokens,
            tokens=int(wanted),
            stream=bool(raw.get("stream")),
            include_usage=bool(options.get("include_usage")),
        )
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        return error_reply(f"bad request: {error!r}", "invalid_request_error", 400)
    if request.model != model:
        return error_reply(f"The model `{request.model}` does not exist.", "NotFoundError", 404)
    if request.prompt_tokens + request.tokens > max_model_len:
        return error_reply(f"longer than {max_model_len} tokens", "BadRequestError", 400)
    return request


def whole(request: Asked) -> JsonReply:
    """The answer in one piece."""
    text = " ".join(f"t{number}" for number in range(request.tokens))
    chat = request.route is Route.CHAT
    content: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    kind = "chat.completion" if chat else "text_completion"
    choices = [{"index": 0, "finish_reason": "length", "logprobs": None} | content]
    return JsonReply(200, json.dumps(_frame(request, kind) | {"choices": choices, "usage": request.usage()}).encode())


class Events:
    """The events of one streamed answer."""

    def __init__(self, request: Asked) -> None:
        self._request = request
        self._kind = "chat.completion.chunk" if request.route is Route.CHAT else "text_completion"
        framed = self._event(_WORD, None)
        self._before, _, self._after = framed.partition(_WORD.encode())

    def word(self, number: int) -> bytes:
        """The event of one token."""
        return b"%s t%d%s" % (self._before, number, self._after)

    def end(self) -> bytes:
        """What follows the last token."""
        usage = {"choices": [], "usage": self._request.usage()}
        asked_for = _event(_frame(self._request, self._kind) | usage) if self._request.include_usage else b""
        return self._event("", "length") + asked_for + DONE

    def _event(self, text: str, finish: str | None) -> bytes:
        content: dict[str, Any] = (
            {"delta": {"content": text} if text else {}} if self._request.route is Route.CHAT else {"text": text}
        )
        return _event(
            _frame(self._request, self._kind) | {"choices": [{"index": 0, "finish_reason": finish} | content]}
        )


def _frame(request: Asked, kind: str) -> dict[str, Any]:
    return {"id": "words", "object": kind, "created": 0, "model": request.model}


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"
