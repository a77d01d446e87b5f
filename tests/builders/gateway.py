"""Requests to a gateway, and replicas that break in every way."""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from ebbtide.client.messages import KeyGrant, RoutingTable, SeatRoute
from tests.serve_apps.gateway.fakes import (
    MODEL,
    FakeReplica,
    Scene,
    until,
)

CHAT = "/v1/chat/completions"


async def connect(scene: Scene) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", scene.server.port)


def request(body: bytes, *headers: str, path: str = CHAT) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: x", "content-type: application/json", *headers]
    return "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode() + body


def key(name: str, **fields: Any) -> KeyGrant:
    fields = {"scopes": ("models", "generate")} | fields
    return KeyGrant(name=name, sha256=hashlib.sha256(f"secret-{name}".encode()).hexdigest(), **fields)


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer secret-{name}"}


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


EVENT = b'data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"tiny","choices":[]}\n\n'


Say = Callable[[asyncio.StreamWriter], Awaitable[None]]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def hang(writer: asyncio.StreamWriter) -> None:
    """Connects, takes the request, and says nothing."""
    await asyncio.sleep(30)


@contextlib.asynccontextmanager
async def raw_replica(say: Say) -> AsyncIterator[tuple[SeatRoute, list[bytes]]]:
    """A replica that reads a request and then does ``say``."""
    asked: list[bytes] = []
    talking: set[asyncio.Task[None]] = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        talking.add(task)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            asked.append(await reader.readexactly(length))
            await say(writer)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    yield SeatRoute(f"{MODEL}/9", f"raw-{port}", f"http://127.0.0.1:{port}"), asked
    server.close()
    for task in talking:
        task.cancel()
    await asyncio.gather(*talking, return_exceptions=True)


async def route(scene: Scene, broken: SeatRoute, healthy: FakeReplica | None) -> None:
    seats = (broken, healthy.route) if healthy else (broken,)
    scene.arbiter.table = RoutingTable(scene.arbiter.table.version + 1, {MODEL: seats})
    version = scene.arbiter.table.version
    await until(lambda: scene.arbiter.reports[-1].routes_seen >= version)


async def answer_to(scene: Scene, raw: bytes, timeout_s: float = 5.0) -> bytes:
    """All that comes back until the gateway closes, or has nothing more to say."""
    reader, writer = await connect(scene)
    writer.write(raw)
    answer = b""
    with contextlib.suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(timeout_s):
            while part := await reader.read(65536):
                answer += part
                if answer.endswith(b"}") and b"connection: close" not in answer:
                    break
    writer.close()
    return answer


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0
