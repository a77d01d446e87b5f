"""Streams through Ray Serve's handle, or straight to the replica's own port? ``python -m benchmarks.streaming_path``.

One replica yields the same chunks both ways, as fast as it can; one client process reads them. Rounds alternate, and
the CPU time is that of both processes. Written for docs/decisions/001-streaming-path.md.
"""

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import ray
import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from ray import serve

CHUNKS = 500
STREAMS = 8
ROUNDS = 7
CHUNK = b'data: {"id":"cmpl-0","object":"text_completion","choices":[{"index":0,"text":" word"}]}\n\n'
RESULT = Path(__file__).parent / "results" / "streaming_path.json"


async def chunks() -> AsyncIterator[bytes]:
    """What a replica sends; yields to the loop at each chunk, as an engine does."""
    for _ in range(CHUNKS):
        await asyncio.sleep(0)
        yield CHUNK


class Source:
    """The replica, reachable both ways."""

    async def __init__(self) -> None:  # type: ignore[misc] # Serve awaits it
        app = FastAPI()
        app.get("/")(lambda: StreamingResponse(chunks(), media_type="text/event-stream"))
        config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error")
        self._server = uvicorn.Server(config)
        self._task = asyncio.create_task(self._server.serve())
        while not self._server.started:
            await asyncio.sleep(0.01)

    async def port(self) -> int:
        """Of its own server."""
        return int(self._server.servers[0].sockets[0].getsockname()[1])

    async def cpu_s(self) -> float:
        """CPU seconds of this process so far."""
        return time.process_time()

    async def stream(self) -> AsyncIterator[bytes]:
        """The way through the handle."""
        async for chunk in chunks():
            yield chunk


async def measure(handle: Any, url: str, way: str) -> dict[str, float]:
    """One round: STREAMS streams at once, all read to their end."""
    begun_cpu_s = time.process_time() + await handle.cpu_s.remote()
    begun_s = time.perf_counter()
    first_s: list[float] = []

    async def through_handle() -> None:
        first = True
        async for _ in handle.options(stream=True).stream.remote():
            if first:
                first_s.append(time.perf_counter() - begun_s)
            first = False

    async def straight(session: aiohttp.ClientSession) -> None:
        async with session.get(url) as response:
            first = True
            async for _ in response.content.iter_any():
                if first:
                    first_s.append(time.perf_counter() - begun_s)
                first = False

    if way == "handle":
        await asyncio.gather(*(through_handle() for _ in range(STREAMS)))
    else:
        async with aiohttp.ClientSession() as session:
            await asyncio.gather(*(straight(session) for _ in range(STREAMS)))
    wall_s = time.perf_counter() - begun_s
    cpu_s = time.process_time() + await handle.cpu_s.remote() - begun_cpu_s
    thousands = STREAMS * CHUNKS / 1000
    return {
        "first_chunk_ms": statistics.median(first_s) * 1000,
        "wall_ms_per_1000_chunks": wall_s * 1000 / thousands,
        "cpu_ms_per_1000_chunks": cpu_s * 1000 / thousands,
    }


async def main() -> None:
    """Run all rounds and write the result."""
    os.environ["RAY_AUTH_MODE"] = "disabled"
    temp_dir = tempfile.mkdtemp(prefix="eb-sp-")
    ray.init(address="local", num_cpus=4, include_dashboard=False, logging_level="ERROR", _temp_dir=temp_dir)
    serve.start(proxy_location="Disabled")
    handle = serve.run(serve.deployment(Source).options(max_ongoing_requests=100).bind(), route_prefix=None)
    url = f"http://127.0.0.1:{await handle.port.remote()}/"
    found: dict[str, list[dict[str, float]]] = {"handle": [], "own port": []}
    for number in range(ROUNDS + 1):
        for way, rounds in found.items():
            one = await measure(handle, url, way)
            if number:  # the first round warms up
                rounds.append(one)
    rows = [
        {
            "case": way,
            "metric": metric,
            "unit": "ms",
            "median": round(statistics.median(values), 3),
            "min": round(min(values), 3),
            "max": round(max(values), 3),
            "n": len(values),
        }
        for way, rounds in found.items()
        for metric in rounds[0]
        for values in [[one[metric] for one in rounds]]
    ]
    RESULT.parent.mkdir(exist_ok=True)
    result = {
        "name": "streaming_path",
        "date": time.strftime("%Y-%m-%d"),
        "command": "python -m benchmarks.streaming_path",
        "hardware": f"{os.cpu_count()} CPU cores, no GPU",
        "versions": {"ray": ray.__version__, "aiohttp": aiohttp.__version__, "python": sys.version.split()[0]},
        "rows": rows,
        "bars": [],
    }
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    for row in rows:
        print(f"{row['case']:10} {row['metric']:26} {row['median']:10} ({row['min']} .. {row['max']})")
    ray.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
