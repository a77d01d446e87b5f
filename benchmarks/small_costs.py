"""Costs that comments and help texts name, each of them small: ``python -m benchmarks.small_costs [--quick]``.

- what a connection costs the gateway that nobody sends anything on;
- CPU of the serving side per 1,000 streamed chunks, with llhttp (``httptools``) and with ``h11``;
- CPU of the reading side per 1,000 chunks: the gateway's own ``ReplicaConnection``, aiohttp, httpx;
- how long an arbiter takes to replay 30,000 events.

No Ray: the other end is a child process that speaks HTTP over raw sockets. CPU is that of the process that is measured
alone. Cases take turns, so that what disturbs the machine disturbs all.
"""

import asyncio
import resource
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import httpx
import psutil
import uvicorn
import uvloop

from benchmarks.rows import Bar, Row, result, row, write
from ebbtide.client.messages import GatewayOrders, GatewayReport
from ebbtide.ledger.epoch_log import EpochLog
from ebbtide.pool.events import Body, Event, NodeFound, Slot, SlotFound, SlotFreed, SlotUnfenced
from ebbtide.pool.ids import NodeId, RecordId, slot_id
from ebbtide_autoscaler.journal.records import Journal, recover
from ebbtide_autoscaler.journal.recovery import Recovered
from ebbtide_serve.gateway.http.replica_connection import ReplicaConnection
from ebbtide_serve.gateway.server import GatewayServer
from ebbtide_serve.gateway.settings import GatewaySettings

STREAMS = 16
PACE_S = 0.002  # between two chunks of a stream: a token every 2 ms comes alone, as from a fast engine
CHUNK = b'data: {"id":"cmpl-0","object":"text_completion","choices":[{"index":0,"text":" word"}]}\n\n'
FRAMED = b"%x\r\n%b\r\n" % (len(CHUNK), CHUNK)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
# Children: one opens connections and keeps them, one reads streams, one writes them.
KEEP = """
import resource, socket, sys
port, number = int(sys.argv[1]), int(sys.argv[2])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
held = [socket.create_connection(("127.0.0.1", port)) for _ in range(number)]
for one in held:
    one.sendall(b"GET /health HTTP/1.1\\r\\nhost: x\\r\\n\\r\\n")
for one in held:
    assert one.recv(65536).startswith(b"HTTP/1.1 200"), "refused"
print("held", flush=True)
sys.stdin.read()
"""
READ = """
import asyncio, sys
async def one(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\\r\\nhost: x\\r\\nconnection: close\\r\\n\\r\\n")
    while await reader.read(65536):
        pass
async def main():
    await asyncio.gather(*(one(int(sys.argv[1])) for _ in range(int(sys.argv[2]))))
asyncio.run(main())
"""


class Nobody:
    """An arbiter that is away."""

    async def report_gateway(self, report: GatewayReport) -> GatewayOrders | None:
        """No answer."""
        return None


async def idle_connection_kib(number: int) -> float:
    """KiB of resident memory that each of ``number`` idle connections costs the gateway."""
    settings = GatewaySettings(endpoints=("m",), internal_token="t", port=0, idle_timeout_s=300.0)
    server = GatewayServer(settings, Nobody())
    await server.start()
    try:
        async with httpx.AsyncClient(base_url=server.gateway.url, trust_env=False) as http:
            for _ in range(50):  # what the first requests allocate is no connection's
                assert (await http.get("/health")).status_code == 200
        before = psutil.Process().memory_info().rss
        pipe = asyncio.subprocess.PIPE
        child = await _child(KEEP, server.port, number, stdin=pipe, stdout=pipe)
        assert child.stdin is not None and child.stdout is not None
        assert await child.stdout.readline() == b"held\n"
        each = (psutil.Process().memory_info().rss - before) / number
        child.stdin.close()
        await child.wait()
        return each / 1024
    finally:
        await server.stop(0.0)


async def serving_ms(protocol: str, chunks: int) -> float:
    """CPU ms per 1,000 chunks that uvicorn sends with this HTTP implementation."""

    async def app(scope: object, receive: object, send: Callable[[dict[str, object]], Awaitable[None]]) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        for _ in range(chunks):
            await asyncio.sleep(PACE_S)
            await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    config = uvicorn.Config(app, port=0, http=protocol, log_config=None, lifespan="off")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    before_s = time.process_time()
    await (await _child(READ, port, STREAMS)).wait()
    spent_s = time.process_time() - before_s
    server.should_exit = True
    await serving
    return 1e6 * spent_s / (chunks * STREAMS)


async def by_wire(port: int) -> None:
    """Read a stream as the gateway does."""
    loop = asyncio.get_running_loop()
    _, wire = await loop.create_connection(lambda: ReplicaConnection(loop, 60.0), "127.0.0.1", port)
    wire.ask(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", b"")
    await wire.answered()
    while await wire.read():
        pass
    wire.close()


async def by_aiohttp(port: int) -> None:
    """Read a stream with aiohttp."""
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/") as answer:
        async for _ in answer.content.iter_any():
            pass


async def by_httpx(port: int) -> None:
    """Read a stream with httpx."""
    async with httpx.AsyncClient(trust_env=False) as http, http.stream("GET", f"http://127.0.0.1:{port}/") as answer:
        async for _ in answer.aiter_raw():
            pass


READERS: dict[str, Callable[[int], Awaitable[None]]] = {
    "ReplicaConnection": by_wire,
    "aiohttp": by_aiohttp,
    "httpx": by_httpx,
}


async def reading_ms(read: Callable[[int], Awaitable[None]], port: int, chunks: int) -> float:
    """CPU ms per 1,000 chunks that ``read`` takes in."""
    before_s = time.process_time()
    await asyncio.gather(*(read(port) for _ in range(STREAMS)))
    return 1e6 * (time.process_time() - before_s) / (chunks * STREAMS)


async def write_streams(chunks: int) -> None:
    """The child that writes: each connection gets a head, ``chunks`` chunks and an end."""

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD)
        for _ in range(chunks):
            await asyncio.sleep(PACE_S)
            writer.write(FRAMED)
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(one, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@asynccontextmanager
async def writing(chunks: int) -> AsyncIterator[int]:
    """The port of such a child."""
    words = ("-m", "benchmarks.small_costs", "--write", str(chunks))
    child = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=asyncio.subprocess.PIPE)
    assert child.stdout is not None
    try:
        yield int(await child.stdout.readline())
    finally:
        child.kill()
        await child.wait()


def replay_s(events: int) -> float:
    """Seconds that an arbiter takes to replay so many events, the longest ledger without a snapshot."""
    slot = slot_id(NodeId("n"), 0)
    bodies: list[Body] = [NodeFound(NodeId("n"), 10), SlotFound(Slot(slot, NodeId("n"), 0)), SlotFreed(slot)]
    bodies += [(SlotUnfenced(slot), SlotFreed(slot))[number % 2] for number in range(events - len(bodies))]
    with tempfile.TemporaryDirectory(prefix="ebbtide-replay-") as folder:
        journal = Journal(EpochLog.open(Path(folder), writer="benchmark"), Recovered())
        journal.write([Event(RecordId(f"1.{n}"), float(n), None, body) for n, body in enumerate(bodies)]).result()
        journal.close()
        begun_s = time.monotonic()
        recover(Path(folder))
        return time.monotonic() - begun_s


async def _child(code: str, *arguments: int, **pipes: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(sys.executable, "-c", code, *map(str, arguments), **pipes)  # type: ignore[arg-type]


async def measure(quick: bool = False) -> tuple[list[Row], list[Bar]]:
    """All rows. There is no bar: no issue has set a goal for any of it."""
    rounds, connections, chunks, events = (2, 200, 50, 2_000) if quick else (5, 9_000, 500, 30_000)
    found: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    each = await idle_connection_kib(connections)  # once: what a process has had it keeps
    found[f"{connections} idle connections", "memory each", "KiB"].append(each)
    for _ in range(rounds):
        for protocol in ("httptools", "h11"):
            found[f"serving with {protocol}", "CPU per 1,000 chunks", "ms"].append(await serving_ms(protocol, chunks))
        async with writing(chunks) as port:
            for name, read in READERS.items():
                found[f"reading with {name}", "CPU per 1,000 chunks", "ms"].append(await reading_ms(read, port, chunks))
        found[f"replay of {events} events", "time", "s"].append(await asyncio.to_thread(replay_s, events))
    return [row(*case, values) for case, values in found.items()], []


if __name__ == "__main__":
    if "--write" in sys.argv:
        uvloop.run(write_streams(int(sys.argv[-1])))
    else:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        done = result("small_costs", "python -m benchmarks.small_costs", *uvloop.run(measure("--quick" in sys.argv)))
        print(write(done))
