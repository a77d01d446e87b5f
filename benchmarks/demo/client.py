"""The demo's users: they send each request when it is due, over HTTP, stream the answer, and never try again."""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import aiohttp

from benchmarks.demo.traffic import Request

CLIENT_TIMEOUT_S = 150.0
CHARACTERS_PER_TOKEN = 3.0  # of the demo's tokenizer on its own text; a little low, so that prompts fit the context


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one request. Times are seconds since 1970; ``ttft_s`` is the user's wait for the first byte."""

    number: int
    sent_s: float
    status: int
    ttft_s: float
    total_s: float
    tokens: int
    done: bool
    error: str = ""

    @property
    def ok(self) -> bool:
        """A 2xx whose stream ended with [DONE] and said how many tokens it was."""
        return 200 <= self.status < 300 and self.done and self.tokens > 0 and not self.error


async def send_all(
    url: str, model: str, requests: Sequence[Request], text: str, *, api_key: str = "", first: int = 0
) -> list[Outcome]:
    """Send all ``requests``, numbered from ``first``, their time beginning now; returns when each has an outcome."""
    started = time.monotonic()
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=CLIENT_TIMEOUT_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers) as session:

        async def send(number: int, request: Request) -> Outcome:
            await asyncio.sleep(max(0.0, started + request.at_s - time.monotonic()))
            return await _send(session, url, model, number, request, text)

        return list(await asyncio.gather(*(send(number, request) for number, request in enumerate(requests, first))))


async def _send(
    session: aiohttp.ClientSession, url: str, model: str, number: int, request: Request, text: str
) -> Outcome:
    length = int(request.prompt_tokens * CHARACTERS_PER_TOKEN)
    start = (number * 7919) % max(1, len(text) - length)  # a prime step: every prompt is another piece of the text
    body: dict[str, Any] = {
        "model": model,
        "prompt": text[start : start + length],
        "max_tokens": request.answer_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    sent_s, clock = time.time(), time.monotonic()
    status, ttft_s, tokens, done, error = 0, 0.0, 0, False, ""
    try:
        async with session.post(f"{url}/v1/completions", json=body) as response:
            status = response.status
            async for line in response.content:
                if not ttft_s:
                    ttft_s = time.monotonic() - clock
                if not line.startswith(b"data: "):
                    error += line.decode(errors="replace").strip()[:200] if status >= 300 else ""
                elif line.startswith(b"data: [DONE]"):
                    done = True
                else:
                    event = json.loads(line[6:])
                    error = error or json.dumps(event["error"])[:200] if "error" in event else error
                    tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as failure:
        error = repr(failure)[:200]
    return Outcome(number, sent_s, status, ttft_s, time.monotonic() - clock, tokens, done, error)


def as_json(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """For the report."""
    return [{**asdict(outcome), "ok": outcome.ok} for outcome in outcomes]
