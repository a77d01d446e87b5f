"""What /openapi.json says beyond what FastAPI sees: bodies are read by hand (bounded), answers are a replica's own.

Every status that a route can give is there, and no other; a test with schemathesis holds us to it.
"""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from ebbtide_serve.gateway.http.protocol import ErrorReply

Responses = dict[int | str, dict[str, Any]]

_MEANINGS = {
    400: "The body is malformed, or a field is wrong.",
    401: "No valid API key.",
    403: "The API key may not do this.",
    404: "No such model.",
    408: "The body came too slowly.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    426: "A stream needs HTTP/1.1.",
    429: "The key's limit is reached, or too many wait for a replica; see Retry-After.",
    431: "Headers too many or too large.",
    500: "The engine failed.",
    502: "Replicas were lost with this request.",
    503: "The gateway stops, has just started, has too many connections, or the model does not start; see Retry-After.",
    504: "The answer took too long.",
}
_RETRY_AFTER = {"retry-after": {"description": "Seconds to wait.", "schema": {"type": "integer"}, "required": True}}
_WITH_RETRY_AFTER = (429, 503)
_LEFT = {
    f"x-ratelimit-{what}-{kind}": {
        "description": f"{meaning} ({kind} per minute); only for keys with that limit.",
        "schema": {"type": "string" if what == "reset" else "integer"},
    }
    for kind in ("requests", "tokens")
    for what, meaning in (("limit", "The limit"), ("remaining", "What is left"), ("reset", "Until all of it is back"))
}


def errors(*statuses: int) -> Responses:
    """The error answers of a route."""
    found: Responses = {}
    for status in statuses:
        found[status] = {"model": ErrorReply, "description": _MEANINGS[status]}
        if status in _WITH_RETRY_AFTER:
            found[status]["headers"] = _RETRY_AFTER | (_LEFT if status == 429 else {})
    return found


ALWAYS = errors(431, 503)
LISTING = errors(401, 403, 431, 503)
GENERATION: Responses = {
    200: {
        "description": "The answer as the engine gives it: one JSON object, or with `stream: true` events of them.",
        "headers": {"x-request-id": {"schema": {"type": "string"}, "required": True}} | _LEFT,
        "content": {
            "application/json": {"schema": {"type": "object", "required": ["choices"]}},
            "text/event-stream": {},  # `data:` lines, each an object like the one above; the last is [DONE]
        },
    },
    **errors(*_MEANINGS),
}


def request_body(kind: type[BaseModel]) -> dict[str, Any]:
    """The ``openapi_extra`` of a route that takes ``kind`` as JSON."""
    content = {"application/json": {"schema": kind.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}


def publish(app: FastAPI) -> None:
    """Make the description, with how to authenticate, once."""
    described = get_openapi(title=app.title, version=app.version, routes=app.routes)
    described.setdefault("components", {})["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for path, methods in described["paths"].items():
        if path != "/health":
            for operation in methods.values():
                operation["security"] = [{}, {"key": []}]
    app.openapi_schema = described
