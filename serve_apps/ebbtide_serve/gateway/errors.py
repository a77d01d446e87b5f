"""What can go wrong between a client and a replica, and how it looks in OpenAI's shape.

::

    GatewayError
    ├── Refusal         the client gets this status and an OpenAI-shaped body; nothing was or will be executed for it
    ├── ClientGone      the client hung up: nobody to answer
    ├── SeatUnreachable no byte of the request reached the replica: another seat may have it, without limit
    ├── SeatLost        the replica went away with the request, no byte of an answer was passed on: one more try
    └── StreamBroken    the replica went away in mid-answer: the client gets an error event
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from starlette.responses import JSONResponse


class GatewayError(Exception):
    """Base of this package's errors."""


class ClientGone(GatewayError):
    """The client closed its connection."""


class SeatUnreachable(GatewayError):
    """The connection to a replica could not be made, or it said that it takes nothing now: nothing was executed."""


class SeatLost(GatewayError):
    """A replica took the request and died before the first byte of an answer."""


class SeatDead(SeatLost):
    """The replica is still there to say that its engine is not: this replica never serves again."""


class StreamBroken(GatewayError):
    """A replica died, or said nothing more, after its answer had begun."""


@dataclass(eq=False)
class Refusal(GatewayError):
    """An answer that the gateway gives itself.

    Args:
        status: HTTP status.
        message: what is wrong, with which values, and what to do.
        kind: OpenAI's ``type``.
        code: OpenAI's ``code``, for programs.
        param: the field of the body at fault.
        headers: further response headers.
    """

    status: int
    message: str
    kind: str = "invalid_request_error"
    code: str | None = None
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.status}: {self.message}"

    def response(self) -> JSONResponse:
        """The refusal as an HTTP response."""
        return JSONResponse(self.body(), status_code=self.status, headers=dict(self.headers))

    def body(self) -> dict[str, object]:
        """The refusal as OpenAI writes it."""
        return error_body(self.message, kind=self.kind, code=self.code, param=self.param)


def error_body(message: str, *, kind: str, code: str | None = None, param: str | None = None) -> dict[str, object]:
    """``{"error": {...}}`` with the four fields that OpenAI's clients read."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def error_event(message: str, *, code: str) -> bytes:
    """A server-sent event that makes OpenAI's clients raise; no ``[DONE]`` follows it."""
    return b"data: " + json.dumps(error_body(message, kind="server_error", code=code)).encode() + b"\n\n"


def model_not_found(name: str) -> Refusal:
    """A 404 for a model that is not served here, or not any more."""
    message = f"The model {name!r} does not exist. GET /v1/models lists those that do."
    return Refusal(404, message, code="model_not_found", param="model")


def too_busy(message: str, *, code: str, retry_after_s: float) -> Refusal:
    """A 429 that says when to come back; OpenAI's clients obey ``Retry-After``."""
    return Refusal(
        429,
        message,
        kind="rate_limit_error",
        code=code,
        headers={"retry-after": _whole_seconds(retry_after_s)},  # guard: a 429 says when to come back
    )


def endpoint_unavailable(name: str, failure: str, again_in_s: float) -> Refusal:
    """A 503 for an endpoint whose starts fail. Why is not for clients: the id ``failure`` leads operators to it."""
    message = f"The model {name!r} is not available now: it does not start."
    if failure:
        message += f" Tell its operator the id {failure}."
    return Refusal(
        503,
        message,
        kind="endpoint_unavailable",
        code="start_failed",
        headers={
            "retry-after": _whole_seconds(again_in_s)
        },  # guard: a refusal of an endpoint says when it is tried again
    )


def _whole_seconds(retry_after_s: float) -> str:
    """Rounded up: the header has no fractions."""
    return str(max(1, -int(-retry_after_s // 1)))  # guard: Retry-After is never too early


def unavailable(message: str, *, code: str, retry_after_s: int = 1) -> Refusal:
    """A 503: the fault is ours and passes."""
    return Refusal(
        503,
        message,
        kind="server_error",
        code=code,
        headers={"retry-after": str(retry_after_s)},  # guard: a 503 says when to come back
    )
