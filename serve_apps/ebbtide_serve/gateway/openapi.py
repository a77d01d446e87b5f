"""What /openapi.json says beyond what FastAPI sees: bodies are read by hand (bounded), their schemas are added here."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from ebbtide_serve.gateway.protocol import ErrorReply

_MEANINGS = {
    400: "The body is malformed, or a field is wrong.",
    401: "No valid API key.",
    403: "The API key may not do this.",
    404: "No such model.",
    408: "The body came too slowly.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    429: "Too many requests for this key, or too many wait for a replica; see Retry-After.",
    500: "The engine failed.",
    502: "Replicas were lost with this request.",
    503: "The gateway is stopping; see Retry-After.",
    504: "The answer took too long.",
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorReply, "description": meaning} for status, meaning in _MEANINGS.items()
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
