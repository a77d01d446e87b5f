"""What a scrape of the gateway shows: over HTTP, with replicas that answer, refuse and die."""

import hashlib
import json
import secrets

import httpx
import pytest

from ebbtide.client.messages import KeyGrant, Traffic
from ebbtide_serve.gateway.telemetry.metrics import Account, Answer, Meter, usage
from tests.platform.telemetry.scrapes import needs_promtool, promtool, values
from tests.serve_apps.gateway.fakes import MODEL, Scene, chat, running_gateway, until

CHAT = "/v1/chat/completions"
REQUESTS = "ebbtide_gateway_requests_total"


async def scrape(http: httpx.AsyncClient) -> dict[tuple[str, ...], float]:
    response = await http.get("/metrics")
    assert response.status_code == 200
    return values(response.content)


async def test_a_stream_is_counted_once_with_its_times_and_tokens(scene: Scene, http: httpx.AsyncClient) -> None:
    await scene.route(await scene.replica(tokens=5, token_every_s=0.02))
    async with http.stream("POST", CHAT, json=chat(stream=True)) as response:
        assert "[DONE]" in (await response.aread()).decode()
    found = await scrape(http)
    assert found[REQUESTS, "200", "-", MODEL] == 1
    assert found["ebbtide_gateway_time_to_first_token_seconds_count", MODEL] == 1
    assert found["ebbtide_gateway_time_per_output_token_seconds_count", MODEL] == 1
    assert 0.01 < found["ebbtide_gateway_time_per_output_token_seconds_sum", MODEL] < 1.0
    assert found["ebbtide_gateway_request_duration_seconds_sum", MODEL] > 0.08
    assert found["ebbtide_gateway_generated_tokens_total", MODEL, "estimate"] == 5
    assert found["ebbtide_gateway_routable_seats", MODEL] == 1
    assert found["ebbtide_gateway_inflight_requests", MODEL] == 0
    assert found[("ebbtide_gateway_arbiter_answered_timestamp_seconds",)] > 0


async def test_tokens_are_those_that_the_replica_counted_where_it_says(scene: Scene, http: httpx.AsyncClient) -> None:
    await scene.route(await scene.replica(tokens=4))
    assert (await http.post(CHAT, json=chat())).status_code == 200
    found = await scrape(http)
    assert found["ebbtide_gateway_prompt_tokens_total", MODEL, "usage"] == 5
    assert found["ebbtide_gateway_generated_tokens_total", MODEL, "usage"] == 4
    assert ("ebbtide_gateway_time_to_first_token_seconds_count", MODEL) not in found, "it came in one piece"
    assert ("ebbtide_gateway_generated_tokens_total", MODEL, "estimate") not in found


def test_usage_is_read_from_the_last_events_and_never_from_generated_text() -> None:
    event = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 9, "total_tokens": 16}}
    assert usage(b"data: " + json.dumps(event).encode() + b"\n\ndata: [DONE]\n\n") == (7, 9)
    said = {"choices": [{"text": '"prompt_tokens": 99'}]}
    assert usage(b"data: " + json.dumps(said).encode() + b"\n\ndata: [DONE]\n\n") is None


async def test_held_requests_show_while_they_wait_and_their_wait_is_no_part_of_ttft(
    scene: Scene, http: httpx.AsyncClient
) -> None:
    import asyncio

    waiting = asyncio.create_task(http.post(CHAT, json=chat(stream=True)))
    await until(lambda: scene.traffic.held == 1)
    await asyncio.sleep(2.0)
    found = await scrape(http)
    assert found["ebbtide_gateway_held_requests", MODEL] == 1
    assert found["ebbtide_gateway_oldest_held_seconds", MODEL] >= 2.0
    await scene.route(await scene.replica())
    assert (await waiting).status_code == 200
    found = await scrape(http)
    assert found["ebbtide_gateway_held_requests", MODEL] == 0
    assert found["ebbtide_gateway_lack_seconds_sum", MODEL] >= 2.0
    assert found["ebbtide_gateway_time_to_first_token_seconds_sum", MODEL] < 1.8


async def test_a_broken_stream_and_a_second_try_are_counted(scene: Scene, http: httpx.AsyncClient) -> None:
    await scene.route(await scene.replica("die_mid"))
    async with http.stream("POST", CHAT, json=chat(stream=True)) as response:
        await response.aread()
    first, second = await scene.replica("die_first"), await scene.replica("die_first")
    await scene.route(first, second)
    assert (await http.post(CHAT, json=chat())).status_code == 502
    found = await scrape(http)
    assert found["ebbtide_gateway_broken_streams_total", MODEL] == 1
    assert found["ebbtide_gateway_retries_total", MODEL] == 1
    assert found[REQUESTS, "200", "-", MODEL] == 1
    assert found[REQUESTS, "502", "-", MODEL] == 1


@pytest.mark.proves("a model that is not served is a 404", "the metrics need the scope of operators")
async def test_refusals_count_by_key_and_code_and_strangers_make_no_labels() -> None:
    secret = secrets.token_urlsafe(24)
    key = KeyGrant(
        name="users",
        sha256=hashlib.sha256(secret.encode()).hexdigest(),
        scopes=("models", "generate"),
        requests_per_minute=1,
    )
    admin = secrets.token_urlsafe(24)
    admin_key = KeyGrant(name="ops", sha256=hashlib.sha256(admin.encode()).hexdigest(), scopes=("models", "admin"))
    async with (
        running_gateway(keys=(key, admin_key)) as scene,
        httpx.AsyncClient(base_url=scene.url, timeout=20, trust_env=False) as http,
    ):
        await scene.route(await scene.replica())
        as_user = {"authorization": f"Bearer {secret}"}
        assert (await http.post(CHAT, json=chat(model="strange"), headers=as_user)).status_code == 404
        assert (await http.post(CHAT, json=chat(), headers=as_user)).status_code == 200
        assert (await http.post(CHAT, json=chat(), headers=as_user)).status_code == 429
        assert (await http.post(CHAT, json=chat(), headers={"authorization": "Bearer guess"})).status_code == 401
        assert (await http.get("/metrics")).status_code == 401
        assert (await http.get("/metrics", headers=as_user)).status_code == 403
        response = await http.get("/metrics", headers={"authorization": f"Bearer {admin}"})
        found = values(response.content)
        assert found[REQUESTS, "200", "users", MODEL] == 1
        assert found[REQUESTS, "429", "users", MODEL] == 1
        assert found[REQUESTS, "404", "users", "-"] == 1
        assert found[REQUESTS, "401", "-", "-"] == 2
        assert secret not in response.text and "strange" not in response.text


def a_meter() -> Meter:
    return Meter(lambda: [(MODEL, Traffic(), 1)], lambda: False)


def test_ten_thousand_strange_names_do_not_make_a_scrape_grow() -> None:
    meter = a_meter()
    meter.know(["users"], [MODEL])
    meter.refused("users", MODEL, 404)
    meter.refused("-", "-", 404)
    answer = Answer(3, 4, False, 0.01)
    meter.booked(Account("-", "-", 10, 0.0, status=200, first_s=1.0), 2.0, answer)
    before = len(meter.metrics.text()[0])
    for number in range(10_000):
        meter.refused(f"key-{number}", f"model-{number}", 404)
        meter.booked(Account(f"key-{number}", f"m-{number}", 10, 0.0, status=200, first_s=1.0), 2.0, answer)
    assert len(meter.metrics.text()[0]) < before * 1.05  # numbers grow, series do not
    assert values(meter.metrics.text()[0])[REQUESTS, "404", "-", "-"] == 10_001


async def test_strange_paths_and_models_over_http_do_not_make_a_scrape_grow(scene: Scene) -> None:
    async with httpx.AsyncClient(base_url=scene.url, timeout=20, trust_env=False) as http:
        await http.get("/first")
        await http.post(CHAT, json=chat(model="first"))
        before = len((await http.get("/metrics")).content)
        for number in range(200):
            await http.get(f"/path-{number}")
            await http.post(CHAT, json=chat(model=f"model-{number}"))
        assert len((await http.get("/metrics")).content) < before * 1.05


def test_the_series_of_a_key_that_is_gone_go_with_it() -> None:
    meter = a_meter()
    meter.know(["old", "users"], [MODEL])
    meter.refused("old", MODEL, 429)
    meter.refused("users", MODEL, 429)
    meter.know(["users"], [MODEL])
    found = values(meter.metrics.text()[0])
    assert (REQUESTS, "429", "old", MODEL) not in found
    assert found[REQUESTS, "429", "users", MODEL] == 1
    meter.refused("old", MODEL, 429)
    assert values(meter.metrics.text()[0])[REQUESTS, "429", "-", MODEL] == 1


@needs_promtool
async def test_promtool_has_nothing_to_say(scene: Scene, http: httpx.AsyncClient) -> None:
    await scene.route(await scene.replica(tokens=3))
    assert (await http.post(CHAT, json=chat())).status_code == 200
    async with http.stream("POST", CHAT, json=chat(stream=True)) as response:
        await response.aread()
    assert promtool("check", "metrics", text=(await http.get("/metrics")).content) == ""


@pytest.mark.parametrize("accept", ["", "text/plain", "application/openmetrics-text; version=1.0.0"])
async def test_a_scrape_says_which_format_it_has(http: httpx.AsyncClient, accept: str) -> None:
    response = await http.get("/metrics", headers={"accept": accept} if accept else {})
    assert response.headers["content-type"].split(";")[0] == (accept.split(";")[0] or "text/plain")
