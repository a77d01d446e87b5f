"""A stream in which the engine itself reports an error: a status before it begins, the last word afterwards."""

import json
from collections.abc import AsyncGenerator

import aiohttp
import pytest

from ebbtide_serve.engine.port import EngineSettings, Reply, Route, StreamReply
from ebbtide_serve.replica.http_app import ReplicaApp
from ebbtide_serve.replica.http_server import PortServer
from ebbtide_serve.testing.fake_engine import FakeEngine

EVENT = b'data: {"choices": []}\n\n'
DONE = b"data: [DONE]\n\n"


def an_error(code: object) -> bytes:
    return (
        b"data: "
        + json.dumps({"error": {"message": "no", "type": "t", "param": None, "code": code}}).encode()
        + b"\n\n"
    )


class Scripted(FakeEngine):
    """Streams what it was told to."""

    def __init__(self, *events: bytes) -> None:
        super().__init__(EngineSettings("m", "", {}))
        self._events = events

    async def handle(self, route: Route, body: bytes) -> Reply:
        async def told() -> AsyncGenerator[bytes, None]:
            for event in self._events:
                yield event

        return StreamReply(told())


async def answer(*events: bytes) -> tuple[int, str, bytes]:
    """Status, content type and body of the answer to one request."""
    app = ReplicaApp(token="secret")
    app.serve(Scripted(*events))
    port = PortServer(app, "127.0.0.1")
    await port.start()
    try:
        async with (
            aiohttp.ClientSession(headers={"x-ebbtide-token": "secret"}) as client,
            client.post(f"{port.url}/v1/completions", json={"stream": True}) as response,
        ):
            return response.status, response.content_type, await response.read()
    finally:
        await port.stop()


@pytest.mark.proves("a failure before the first event is a status")
@pytest.mark.parametrize(("code", "status"), [(400, 400), (503, 503), ("odd", 500), (200, 500), (None, 500)])
async def test_an_error_before_the_first_event_is_a_status_so_that_it_can_be_told_or_tried_elsewhere(
    code: object, status: int
) -> None:
    found, media, body = await answer(an_error(code), DONE)
    assert (found, media) == (status, "application/json")
    assert json.loads(body)["error"]["message"] == "no"


@pytest.mark.proves("an error event is the last word of a stream")
async def test_an_error_in_a_begun_stream_is_the_last_word() -> None:
    """A [DONE] behind it would read as success."""
    assert await answer(EVENT, an_error(500), DONE) == (200, "text/event-stream", EVENT + an_error(500))
    assert await answer(EVENT, DONE) == (200, "text/event-stream", EVENT + DONE)
