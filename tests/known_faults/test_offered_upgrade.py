"""A request that offers an upgrade, as Java's HttpClient and `curl --http2` do, keeps its body."""

import asyncio
import json

import pytest

from tests.serve_apps.gateway.fakes import chat, running_gateway

BODY = json.dumps(chat()).encode()
OFFERS = {
    "h2c": b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n",
    "websocket": b"connection: upgrade\r\nupgrade: websocket\r\n",
}


@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="the HTTP parser stops at an offer of an upgrade, and the body is lost"
)
@pytest.mark.parametrize("offer", OFFERS.values(), ids=OFFERS)
@pytest.mark.parametrize("pause_s", [0.0, 0.2], ids=["one write", "two writes"])
async def test_its_body_is_read(offer: bytes, pause_s: float) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    async with running_gateway() as scene:
        await scene.route(await scene.replica())
        reader, writer = await asyncio.open_connection("127.0.0.1", scene.server.port)
        writer.write(head + b"content-length: %d\r\n" % len(BODY) + offer + b"\r\n")
        await asyncio.sleep(pause_s)
        writer.write(BODY)
        answer = await asyncio.wait_for(reader.readuntil(b"\r\n"), 10)
        writer.close()
    assert answer.split(b" ")[1] == b"200"
