"""A replica whose events carry several tokens each, and no usage, is counted by tokens and not by events."""

import asyncio
import hashlib
import json

import httpx
import pytest

from ebbtide.client.messages import KeyGrant
from tests.builders.gateway import HEAD, chunk, raw_replica, route
from tests.serve_apps.gateway.fakes import MODEL, chat, running_gateway

EVENTS, EACH = 20, 4


def event() -> bytes:
    delta = {"index": 0, "delta": {"content": "w " * EACH}, "finish_reason": None}
    made = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": MODEL, "choices": [delta]}
    return f"data: {json.dumps(made)}\n\n".encode()


async def says(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD)
    for _ in range(EVENTS):
        writer.write(chunk(event()))
        await writer.drain()
    writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="without usage each event counts as one token")
async def test_tokens_count_and_not_events() -> None:
    digest = hashlib.sha256(b"secret-k").hexdigest()
    key = KeyGrant(name="k", sha256=digest, scopes=("models", "generate"), tokens_per_minute=6000)
    async with running_gateway(keys=(key,)) as scene, raw_replica(says) as (replica, _):
        await route(scene, replica, None)
        headers = {"authorization": "Bearer secret-k"}
        async with httpx.AsyncClient(base_url=scene.url, trust_env=False, headers=headers) as http:
            await http.post("/v1/chat/completions", json=chat(stream=True))
        text = scene.server.gateway.meter.metrics.text("")[0].decode()
    counted = sum(
        float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.startswith("ebbtide_gateway_generated_tokens_total")
    )
    assert counted >= EVENTS * EACH
