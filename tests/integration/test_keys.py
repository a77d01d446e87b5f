"""`ebbtide keys` from the command to the sockets of several gateways: the real arbiter with a real ledger between them.

Only Ray is left out: a call to the arbiter is a call to the arbiter.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from ebbtide.client.messages import GatewayOrders, GatewayReport
from ebbtide_autoscaler.actor.arbiter import Arbiter
from ebbtide_autoscaler.journal.records import recover
from ebbtide_serve.commands import keys as keys_command
from ebbtide_serve.gateway.server import GatewayServer
from tests.builders.arbiter import Start, an_arbiter, asked, start  # noqa: F401 - fixtures
from tests.serve_apps.gateway.fakes import settings

GATEWAYS = 3
SOON_S = 1.0  # what `ebbtide keys` promises


class Called:
    """What stands for Ray on the way to the arbiter."""

    def __init__(self, arbiter: Arbiter) -> None:
        self._arbiter = arbiter

    async def report_gateway(self, report: GatewayReport) -> GatewayOrders | None:
        return await asyncio.to_thread(self._arbiter.report_gateway, report)

    def call(self, method: str, *arguments: object, timeout_s: float) -> Any:
        return getattr(self._arbiter, method)(*arguments)


@pytest.fixture
def called(start: Start, asked: list[str], monkeypatch: pytest.MonkeyPatch) -> Called:
    found = Called(an_arbiter(start()))
    monkeypatch.setattr(keys_command, "load_cluster", lambda pool: pool)
    monkeypatch.setattr(keys_command, "join", lambda record: None)
    monkeypatch.setattr(keys_command, "ArbiterLink", lambda: found)
    return found


async def keys(*words: str) -> Any:
    """What the command prints, as JSON."""
    done = await asyncio.to_thread(CliRunner().invoke, keys_command.keys, [*words, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@contextlib.asynccontextmanager
async def several(called: Called) -> AsyncIterator[list[httpx.AsyncClient]]:
    """A client of each of several gateways, which nobody but the arbiter tells a thing."""
    async with contextlib.AsyncExitStack() as stack:
        clients = []
        for _ in range(GATEWAYS):
            server = GatewayServer(settings(endpoints=("chat",)), called)
            await server.start()
            stack.push_async_callback(server.stop, 0.0)
            url = f"http://127.0.0.1:{server.port}"
            clients.append(
                await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=20, trust_env=False))
            )
        yield clients


async def all_say(clients: list[httpx.AsyncClient], secret: str, status: int) -> float:
    """Until every gateway answers so; how long after this call the last other answer was asked for."""
    began_s, last_s = time.monotonic(), 0.0
    while True:
        asked_s = time.monotonic()
        headers = {"authorization": f"Bearer {secret}"}
        answers = [(await client.get("/v1/models", headers=headers)).status_code for client in clients]
        if set(answers) == {status}:
            return last_s
        last_s = asked_s - began_s
        assert last_s < 20.0, answers
        await asyncio.sleep(0.02)


async def test_a_key_is_made_rotated_and_revoked_at_every_gateway_within_a_second(called: Called) -> None:
    async with several(called) as clients:
        await keys("create", "first", "--scope", "admin")  # without any, a gateway on loopback is open
        assert await all_say(clients, "ebb-guessed", 401) < SOON_S
        first = (await keys("create", "team", "--rpm", "100000"))["secret"]
        assert await all_say(clients, first, 200) < SOON_S
        second = (await keys("rotate", "team"))["secret"]
        assert second != first
        assert await all_say(clients, second, 200) < SOON_S
        assert await all_say(clients, first, 200) == 0.0, "the old secret has an hour of grace"
        third = (await keys("rotate", "team", "--grace", "0s"))["secret"]
        assert await all_say(clients, second, 401) < SOON_S
        assert await all_say(clients, third, 200) < SOON_S
        assert await all_say(clients, first, 401) == 0.0, "never three secrets"
        await keys("revoke", "team")
        assert await all_say(clients, third, 401) < SOON_S
        rows = (await keys("list"))["keys"]
        shown = [(row["name"], row["state"], row["requests_per_minute"]) for row in rows]
        assert shown == [("first", "good", None), ("team", "revoked", 100000)]


async def test_what_the_ledger_says_of_a_key_is_enough_for_another_arbiter_and_holds_no_secret(called: Called) -> None:
    secrets = [(await keys("create", name))["secret"] for name in ("one", "two")]
    await keys("revoke", "one")
    folder = called._arbiter._loop.ledger._shared_dir / "ledger"
    found = recover(folder).keys
    assert {name: made.grant.revoked for name, made in found.items()} == {"one": True, "two": False}
    written = b"".join(path.read_bytes() for path in folder.iterdir())
    assert not any(secret.encode() in written for secret in secrets)


async def test_the_command_refuses_what_the_arbiter_refuses(called: Called) -> None:
    await keys("create", "team")
    for words, why in [
        (("create", "team"), "exists"),
        (("create", "x", "--endpoint", "caht"), "no endpoint 'caht'; there are: chat"),
        (("revoke", "nobody"), "no key 'nobody'"),
    ]:
        done = await asyncio.to_thread(CliRunner().invoke, keys_command.keys, words)
        assert done.exit_code == 2 and why in done.stderr, done.output
