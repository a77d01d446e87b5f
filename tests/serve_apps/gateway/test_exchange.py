"""Requests through a real gateway on a real port, by the unmodified OpenAI client and a plain one."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import httpx
import pytest

from ebbtide_serve.gateway.exchange import SHUN_LOST_S
from tests.serve_apps.gateway.fakes import MODEL, TOKEN, Scene, chat, running_gateway, until

if TYPE_CHECKING:
    import openai

HELLO: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "hello"}]


async def test_the_openai_client_gets_chat_and_completions_streamed_and_not(
    scene: Scene, client: openai.AsyncOpenAI
) -> None:
    await scene.route(await scene.replica())
    whole = await client.chat.completions.create(model=MODEL, messages=HELLO)
    assert whole.choices[0].message.content == "t0 t1 t2 " and whole.usage is not None
    assert whole.usage.total_tokens == 8
    stream = await client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "t0 t1 t2 "
    text = await client.completions.create(model=MODEL, prompt="hello")
    assert text.choices[0].text == "t0 t1 t2 "
    texts = await client.completions.create(model=MODEL, prompt="hello", stream=True)
    assert "".join([chunk.choices[0].text async for chunk in texts]) == "t0 t1 t2 "
    assert [model.id async for model in client.models.list()] == [MODEL, "other"]
    await until(lambda: scene.traffic.completed == 4)


async def test_the_synchronous_openai_client_works_too(scene: Scene) -> None:
    import openai

    await scene.route(await scene.replica())

    def ask() -> str | None:
        with openai.OpenAI(base_url=f"{scene.url}/v1", api_key="any", max_retries=0) as client:
            return client.chat.completions.create(model=MODEL, messages=HELLO).choices[0].message.content

    assert await asyncio.to_thread(ask) == "t0 t1 t2 "


@pytest.mark.proves("a replica is shown the internal token")
async def test_nothing_of_the_client_but_the_body_reaches_the_replica(scene: Scene, http: httpx.AsyncClient) -> None:
    replica = await scene.replica()
    await scene.route(replica)
    raw = json.dumps(chat(unknown_field=[1, 2])).encode()
    headers = {
        "authorization": "Bearer secret",
        "cookie": "a=b",
        "x-forwarded-for": "1.2.3.4",
        "content-type": "application/json",
        "x-ebbtide-token": "stolen",
        "x-request-id": "mine-1",
    }
    response = await http.post("/v1/chat/completions", content=raw, headers=headers)
    assert response.status_code == 200 and response.headers["x-request-id"] == "mine-1"
    seen = replica.seen[0].headers
    assert replica.bodies == [raw]
    assert seen["x-ebbtide-token"] == TOKEN and seen["x-request-id"] == "mine-1"
    assert not {"authorization", "cookie", "x-forwarded-for"} & {name.lower() for name in seen}


async def test_a_replicas_4xx_and_5xx_pass_through_but_not_its_headers(scene: Scene, http: httpx.AsyncClient) -> None:
    replica = await scene.replica("bad_request")
    await scene.route(replica)
    response = await http.post("/v1/chat/completions", json=chat())
    assert response.status_code == 400 and response.json()["error"]["code"] == 7
    assert "x-secret" not in response.headers
    replica.behaviour = "crash"
    assert (await http.post("/v1/chat/completions", json=chat())).status_code == 500
    await until(lambda: (scene.traffic.completed, scene.traffic.failed) == (1, 1))
    assert scene.traffic.recent_ttft_s == ()


@pytest.mark.proves("the 401 and 403 of a replica are not told to clients")
async def test_a_replica_that_refuses_our_own_token_is_not_the_clients_401(
    scene: Scene, http: httpx.AsyncClient
) -> None:
    await scene.route(await scene.replica("unauthorized"))
    response = await http.post("/v1/chat/completions", json=chat())
    assert response.status_code == 502 and response.json()["error"]["code"] == "replica_refused"


async def test_a_request_is_held_until_a_replica_is_ready_and_the_hold_is_no_ttft(
    scene: Scene, client: openai.AsyncOpenAI
) -> None:
    asking = asyncio.create_task(client.chat.completions.create(model=MODEL, messages=HELLO))
    await until(lambda: scene.traffic.oldest_held_s > 3.0)
    assert (scene.traffic.held, scene.traffic.inflight, scene.traffic.arrivals) == (1, 0, 1)
    assert scene.traffic.held_bytes > 50
    await scene.route(await scene.replica())
    assert (await asking).choices[0].message.content == "t0 t1 t2 "
    await until(lambda: scene.traffic.completed == 1)
    assert scene.traffic.held == 0 and scene.traffic.held_max_s > 3.0
    assert scene.traffic.recent_ttft_s == (), "nobody knows when an answer in one piece began"
    await until(lambda: scene.traffic.recent_whole != ())
    ((took_s, tokens),) = scene.traffic.recent_whole
    assert 0 < took_s < 2.5 and tokens == 3


@pytest.mark.parametrize("limit", [{"hold_max_requests": 1}, {"hold_max_bytes": 120}])
@pytest.mark.proves("held requests are bounded in bytes", "held requests are bounded in number")
async def test_a_full_hold_says_429_at_once_and_never_executes_what_it_refused(limit: dict[str, int]) -> None:
    async with (
        running_gateway(**limit) as scene,  # type: ignore[arg-type]
        httpx.AsyncClient(base_url=scene.url, timeout=20, trust_env=False, verify=False) as http,
    ):
        first = asyncio.create_task(http.post("/v1/chat/completions", json=chat(user="first")))
        await until(lambda: scene.traffic.held == 1)
        refused = await http.post("/v1/chat/completions", json=chat(user="second"))
        assert refused.status_code == 429 and refused.headers["retry-after"] == "5"
        assert refused.json()["error"]["code"] == "hold_full"
        replica = await scene.replica()
        await scene.route(replica)
        assert (await first).status_code == 200
        third = await http.post("/v1/chat/completions", json=chat(user="third"))
        assert third.status_code == 200
        assert [json.loads(body)["user"] for body in replica.bodies] == ["first", "third"]
        assert (scene.traffic.arrivals, scene.traffic.completed, scene.traffic.failed) == (3, 2, 1)


@pytest.mark.proves("held requests are bounded in age")
async def test_a_request_held_too_long_says_429_and_never_executes() -> None:
    async with (
        running_gateway(hold_max_age_s=0.3) as scene,
        httpx.AsyncClient(base_url=scene.url, timeout=20, trust_env=False, verify=False) as http,
    ):
        response = await http.post("/v1/chat/completions", json=chat(stream=True))
        assert response.status_code == 429 and response.headers["retry-after"] == "5"
        assert response.json()["error"]["code"] == "hold_too_long"
        replica = await scene.replica()
        await scene.route(replica)
        assert (await http.post("/v1/chat/completions", json=chat())).status_code == 200
        assert len(replica.bodies) == 1


@pytest.mark.proves("a client that hangs up ends its request")
async def test_a_client_that_hangs_up_while_held_is_never_executed(scene: Scene, http: httpx.AsyncClient) -> None:
    asking = asyncio.create_task(http.post("/v1/chat/completions", json=chat()))
    await until(lambda: scene.traffic.held == 1)
    asking.cancel()
    await until(lambda: scene.traffic.held == 0, 1.0)
    assert scene.traffic.failed == 1 and scene.traffic.held_bytes == 0
    replica = await scene.replica()
    await scene.route(replica)
    assert (await http.post("/v1/chat/completions", json=chat())).status_code == 200
    assert len(replica.bodies) == 1


@pytest.mark.proves(
    "a client that hangs up before the first byte ends its generation",
    "a client that hangs up in the middle of an answer ends its generation",
)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("token_every_s", [0.05, 30.0], ids=["in mid-answer", "before the first byte"])
async def test_a_client_that_hangs_up_aborts_its_generation_within_a_second(
    scene: Scene, http: httpx.AsyncClient, stream: bool, token_every_s: float
) -> None:
    replica = await scene.replica(tokens=1000, token_every_s=token_every_s)
    await scene.route(replica)
    asking = asyncio.create_task(http.post("/v1/chat/completions", json=chat(stream=stream)))
    await until(lambda: replica.running == 1)
    await asyncio.sleep(0.2)  # some tokens, in the case that has them
    asking.cancel()
    await until(lambda: replica.aborted == 1, 1.0)
    await until(lambda: scene.traffic.failed == 1, 1.0)
    assert scene.traffic.inflight == 0


@pytest.mark.proves(
    "a 503 of a replica whose engine failed is a loss and no answer",
    "a lost replica is left alone for a while",
    "a request whose replica is lost before it answers goes to another once",
)
@pytest.mark.parametrize(("stream", "how"), [(True, "die_first"), (False, "die_first"), (True, "engine_failed")])
async def test_a_replica_lost_before_the_first_byte_costs_one_retry_elsewhere(
    scene: Scene, http: httpx.AsyncClient, stream: bool, how: str
) -> None:
    dying, healthy = await scene.replica(how), await scene.replica()
    await scene.route(dying, healthy)
    for _ in range(2):
        response = await http.post("/v1/chat/completions", json=chat(stream=stream))
        assert response.status_code == 200 and "t2" in response.text
    assert len(dying.bodies) == 1  # it is left alone for a while after that
    assert len(healthy.bodies) == 2
    await until(lambda: (scene.traffic.completed, scene.traffic.failed) == (2, 0))


@pytest.mark.proves("the second loss of a replica ends a request")
async def test_a_request_that_loses_two_replicas_ends_with_an_error(scene: Scene, http: httpx.AsyncClient) -> None:
    replicas = [await scene.replica("die_first") for _ in range(3)]
    await scene.route(*replicas)
    response = await http.post("/v1/chat/completions", json=chat())
    assert response.status_code == 502 and response.json()["error"]["code"] == "replica_lost"
    assert sum(len(replica.bodies) for replica in replicas) == 2


@pytest.mark.proves("a replica that refused is left alone for a while")
async def test_a_request_whose_only_replica_is_dead_is_held_until_the_next_one(
    scene: Scene, http: httpx.AsyncClient
) -> None:
    dead = await scene.replica()
    await scene.route(dead)
    await dead.stop()
    asking = asyncio.create_task(http.post("/v1/chat/completions", json=chat()))
    await until(lambda: scene.traffic.oldest_held_s > 0.1)
    await asyncio.sleep(3.0)  # the dead one is tried again meanwhile, and again
    assert not asking.done()
    await scene.route(await scene.replica())
    assert (await asking).status_code == 200
    await until(lambda: scene.traffic.recent_whole != ())
    assert scene.traffic.recent_whole[0][0] < 2.5


@pytest.mark.proves("a replica that says its engine is dead is never asked again")
async def test_a_replica_whose_engine_is_dead_is_never_asked_again(scene: Scene, http: httpx.AsyncClient) -> None:
    dead = await scene.replica("engine_failed")
    await scene.route(dead)
    asking = asyncio.create_task(http.post("/v1/chat/completions", json=chat()))
    await asyncio.sleep(SHUN_LOST_S + 0.5)  # one that vanished would be tried again by now, and the request be lost
    assert not asking.done() and len(dead.bodies) == 1
    await scene.route(await scene.replica())
    assert (await asking).status_code == 200


@pytest.mark.proves("a draining replica's 503 is not passed on to the client")
async def test_a_replica_that_takes_nothing_now_is_passed_by(scene: Scene, http: httpx.AsyncClient) -> None:
    busy, healthy = await scene.replica("refuse"), await scene.replica()
    await scene.route(busy, healthy)
    responses = [await http.post("/v1/chat/completions", json=chat()) for _ in range(3)]
    assert [response.status_code for response in responses] == [200] * 3


@pytest.mark.proves("a begun stream that breaks ends with an error event")
async def test_a_begun_stream_that_breaks_ends_with_an_error_event_and_no_done(
    scene: Scene, http: httpx.AsyncClient, client: openai.AsyncOpenAI
) -> None:
    import openai

    await scene.route(await scene.replica("die_mid"), await scene.replica("die_mid"))
    response = await http.post("/v1/chat/completions", json=chat(stream=True))
    events = [event for event in response.text.split("\n\n") if event]
    assert "t0" in events[0] and json.loads(events[1].removeprefix("data: "))["error"]["code"] == "replica_lost"
    assert len(events) == 2
    stream = await client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
    with pytest.raises(openai.APIError, match="stream broke"):
        [chunk async for chunk in stream]
    await until(lambda: scene.traffic.failed == 2)


@pytest.mark.proves("a stream that ends without [DONE] counts as broken")
async def test_a_stream_that_ends_without_done_is_not_passed_off_as_whole(
    scene: Scene, http: httpx.AsyncClient
) -> None:
    await scene.route(await scene.replica("no_done"))
    response = await http.post("/v1/chat/completions", json=chat(stream=True))
    assert "replica_lost" in response.text.split("\n\n")[-2]


@pytest.mark.proves("a request has a deadline")
async def test_an_answer_that_never_comes_is_a_504_and_one_that_never_ends_an_error_event() -> None:
    async with (
        running_gateway(request_timeout_s=0.4) as scene,
        httpx.AsyncClient(base_url=scene.url, timeout=20, trust_env=False, verify=False) as http,
    ):
        replica = await scene.replica("silent")
        await scene.route(replica)
        assert (await http.post("/v1/chat/completions", json=chat())).status_code == 504
        await until(lambda: replica.aborted == 1)
        replica.behaviour, replica.tokens, replica.token_every_s = "ok", 1000, 0.05
        response = await http.post("/v1/chat/completions", json=chat(stream=True))
        assert response.status_code == 200 and '"error"' in response.text.split("\n\n")[-2]
        await until(lambda: replica.aborted == 2)


@pytest.mark.proves("an arbiter that fails ends no reports and changes no orders")
async def test_the_arbiter_away_or_broken_stops_nothing(scene: Scene, http: httpx.AsyncClient) -> None:
    await scene.route(await scene.replica())
    scene.arbiter.away = True
    calls = scene.arbiter.calls
    await until(lambda: scene.arbiter.calls >= calls + 2)
    assert (await http.post("/v1/chat/completions", json=chat())).status_code == 200
    scene.arbiter.away, scene.arbiter.broken = False, True
    calls = scene.arbiter.calls
    await until(lambda: scene.arbiter.calls >= calls + 2)
    assert (await http.post("/v1/chat/completions", json=chat())).status_code == 200
    scene.arbiter.broken = False
    await scene.route(await scene.replica())
    assert (await http.post("/v1/chat/completions", json=chat())).status_code == 200
    assert len(scene.replicas[1].bodies) == 1


async def test_no_request_reaches_a_seat_after_the_gateway_said_that_it_is_out(
    scene: Scene, http: httpx.AsyncClient
) -> None:
    """The drain race: clients never pause while a seat leaves and comes back, twelve times."""
    steady, leaving = await scene.replica(), await scene.replica()
    leaving.token_every_s = 0.005
    await scene.route(steady, leaving)
    over = asyncio.Event()

    async def ask() -> list[int]:
        codes = []
        while not over.is_set():
            codes.append((await http.post("/v1/chat/completions", json=chat(stream=True))).status_code)
        return codes

    askers = [asyncio.create_task(ask()) for _ in range(6)]
    reached = 0
    for _ in range(12):
        await scene.route(steady)

        def is_drained() -> bool:
            last = scene.arbiter.reports[-1].traffic[MODEL].seat_inflight
            return last.get(leaving.seat, 0) == 0

        await until(is_drained)
        before = len(leaving.bodies)
        assert leaving.running == 0
        await asyncio.sleep(0.02)
        assert len(leaving.bodies) == before
        reached += before > 0
        await scene.route(steady, leaving)
    over.set()
    codes = [code for asker in askers for code in await asker]
    assert reached and set(codes) == {200}


@pytest.mark.proves("a place at a seat comes back")
async def test_a_stress_of_short_requests_loses_none(scene: Scene, http: httpx.AsyncClient) -> None:
    """200 at once, with hang-ups and deaths between them; the books must balance at every report."""
    replicas = [await scene.replica(token_every_s=0.002) for _ in range(3)]
    replicas[2].behaviour = "die_mid"

    async def ask(number: int) -> int:
        request = http.post("/v1/chat/completions", json=chat(stream=number % 2 == 0))
        if number % 5 == 0:
            with pytest.raises((TimeoutError, asyncio.CancelledError, httpx.HTTPError)):
                await asyncio.wait_for(request, 0.001)
            return 0
        return (await request).status_code

    asking = [asyncio.create_task(ask(number)) for number in range(200)]
    await until(lambda: scene.traffic.arrivals >= 100, 20)
    await scene.route(*replicas)
    codes = await asyncio.gather(*asking)
    assert set(codes) == {0, 200}
    await until(lambda: scene.traffic.held == scene.traffic.inflight == 0)
    now = scene.traffic
    assert now.arrivals == now.completed + now.failed and 160 <= now.arrivals <= 200
    assert now.held_bytes == 0 and now.seat_inflight == {} and now.last_arrival_s > 0
    for report in scene.arbiter.reports:
        past = report.traffic[MODEL]
        assert past.arrivals == past.completed + past.failed + past.held + past.inflight


async def test_a_stream_tells_when_it_began_and_how_fast_it_went(scene: Scene, http: httpx.AsyncClient) -> None:
    await scene.route(await scene.replica(tokens=5, token_every_s=0.1))
    async with http.stream("POST", "/v1/chat/completions", json=chat(stream=True)) as response:
        await response.aread()
    await until(lambda: scene.traffic.recent_tpot_s != ())
    assert scene.traffic.recent_whole == () and len(scene.traffic.recent_ttft_s) == 1
    assert 0.09 < scene.traffic.recent_tpot_s[0] < 0.3


async def test_a_seat_gets_no_more_than_its_share_and_the_rest_waits() -> None:
    async with (
        running_gateway(max_inflight_per_seat=2) as scene,
        httpx.AsyncClient(base_url=scene.url, timeout=20, trust_env=False, verify=False) as http,
    ):
        replica = await scene.replica(token_every_s=0.05)
        await scene.route(replica)
        responses = await asyncio.gather(*[http.post("/v1/chat/completions", json=chat()) for _ in range(7)])
        assert {response.status_code for response in responses} == {200}
        assert replica.most_running == 2
        # A wait for a full replica is no lack of one: it is part of what the policy sees.
        await until(lambda: scene.traffic.completed == 7)
        assert max(took_s for took_s, _ in scene.traffic.recent_whole) > 0.4  # after three waves of 0.15 s
