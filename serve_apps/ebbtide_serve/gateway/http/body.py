"""Reading a request body with bounds on its bytes and its time."""

import asyncio

from starlette.datastructures import Headers
from starlette.types import Receive

from ebbtide_serve.gateway.errors import ClientGone, Refusal


async def read_body(receive: Receive, headers: Headers, *, max_bytes: int, timeout_s: float) -> bytes:
    """The whole body.

    What a refused client goes on to send is thrown away by the server until its header deadline, so that the client
    can read the answer instead of a reset connection.

    Raises:
        Refusal: 413, 408 or 415.
        ClientGone: hung up in mid-body.
    """
    media = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json" and not media.endswith("+json"):  # guard: only JSON is taken
        # Also keeps web pages of strangers out: a browser sends JSON elsewhere only after asking (CORS).
        raise Refusal(415, "Send the body as 'Content-Type: application/json'.", code="unsupported_media_type")
    declared = headers.get("content-length", "")
    # guard: a body that is declared too large is a 413 before it is read
    if declared.isdigit() and int(declared[:20]) > max_bytes:
        raise _too_large(max_bytes)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(timeout_s):  # guard: a body has a deadline
            while True:
                message = await receive()
                # guard: a client that goes in the middle of its body asked for nothing
                if message["type"] == "http.disconnect":
                    raise ClientGone
                part: bytes = message.get("body", b"")
                size += len(part)
                if size > max_bytes:  # guard: a body that turns out too large is a 413
                    raise _too_large(max_bytes)
                parts.append(part)
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        message_text = f"The body did not arrive within {timeout_s:g} s."
        raise Refusal(408, message_text, code="body_timeout", headers={"connection": "close"}) from None


def _too_large(max_bytes: int) -> Refusal:
    return Refusal(413, f"The body is larger than the limit of {max_bytes} bytes.", code="body_too_large")
