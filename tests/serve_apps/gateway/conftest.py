"""One gateway per test, and HTTP clients for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import httpx
import pytest_asyncio

from tests.serve_apps.gateway.fakes import Scene, running_gateway

if TYPE_CHECKING:
    import openai


@pytest_asyncio.fixture
async def scene() -> AsyncIterator[Scene]:
    """A gateway without keys and with default limits."""
    async with running_gateway() as scene:
        yield scene


@pytest_asyncio.fixture
async def http(scene: Scene) -> AsyncIterator[httpx.AsyncClient]:
    """A plain client of that gateway."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=scene.url, timeout=20, trust_env=False, verify=False, limits=limits
    ) as client:
        yield client


@pytest_asyncio.fixture
async def client(scene: Scene) -> AsyncIterator[openai.AsyncOpenAI]:
    """The unmodified OpenAI client; it never retries, so that each failure is seen."""
    import openai  # takes half a second, in each process that only collects tests

    async with openai.AsyncOpenAI(base_url=f"{scene.url}/v1", api_key="any", max_retries=0, timeout=20) as client:
        yield client
