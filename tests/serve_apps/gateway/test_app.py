"""What the gateway refuses by itself, and how it says so."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from ebbtide.client.messages import GatewayOrders
from ebbtide_serve.gateway.app import build_app
from tests.builders.gateway import bearer, key
from tests.examples import examples
from tests.serve_apps.gateway.fakes import MODEL, FakeArbiter, Scene, chat, running_gateway, settings, until

CHAT = "/v1/chat/completions"


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error, which must have exactly OpenAI's four fields."""
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    return error


@pytest_asyncio.fixture
async def keyed() -> AsyncIterator[tuple[Scene, httpx.AsyncClient]]:
    """A gateway with keys of all kinds, and a replica."""
    keys = (
        key("full"),
        key("revoked", revoked=True),
        key("operator", scopes=("models",)),
        key("blind", scopes=("generate",)),
        key("other", endpoints=("other",)),
        key("nothing", endpoints=()),
        key("slow", requests_per_minute=2),
        key("thrifty", tokens_per_minute=60),
        key("single", concurrent_streams=1),
    )
    async with running_gateway(keys=keys) as scene:
        await scene.route(await scene.replica())
        async with httpx.AsyncClient(base_url=scene.url, timeout=20, trust_env=False, verify=False) as http:
            yield scene, http


@pytest.mark.proves("a revoked key is a 401", "an unknown key is a 401")
async def test_without_a_valid_key_there_is_a_401_and_nothing_happens(
    keyed: tuple[Scene, httpx.AsyncClient],
) -> None:
    scene, http = keyed
    for given_key in [None, "", "Bearer", "Basic c2VjcmV0", "Bearer wrong", "secret-full", "Bearer secret-revoked"]:
        headers = {} if given_key is None else {"authorization": given_key}
        for response in (
            await http.post(CHAT, json=chat(), headers=headers),
            await http.get("/v1/models", headers=headers),
        ):
            assert response.status_code == 401 and error_of(response)["code"] == "invalid_api_key"
            assert response.headers["www-authenticate"].startswith("Bearer")
    assert scene.traffic.arrivals == 0 and scene.replicas[0].bodies == []
    assert (await http.get("/health")).json() == {"status": "ok"}


@pytest.mark.proves(
    "a gateway's host name is not taken for loopback",
    "the bind address says whether a gateway may be open",
)
async def test_a_gateway_that_others_can_reach_lets_nobody_in_without_keys() -> None:
    for host, status in [("127.0.0.1", 200), ("0.0.0.0", 401), ("gateway.example", 401)]:
        app = build_app(settings(host=host), FakeArbiter())
        app.state.gateway.obey(GatewayOrders(keys_version=1, keys=()))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as http:
            assert (await http.get("/v1/models")).status_code == status


@pytest.mark.proves(
    "a key reaches only its own endpoints",
    "generation needs its scope",
    "the list of models needs its scope",
    "the list shows a key only its own endpoints",
)
async def test_a_key_may_do_what_its_scopes_and_endpoints_say(keyed: tuple[Scene, httpx.AsyncClient]) -> None:
    scene, http = keyed
    assert (await http.post(CHAT, json=chat(), headers=bearer("full"))).status_code == 200
    refused = await http.post(CHAT, json=chat(), headers=bearer("operator"))
    assert refused.status_code == 403 and error_of(refused)["code"] == "missing_scope"
    assert (await http.get("/v1/models", headers=bearer("operator"))).status_code == 200
    assert (await http.get("/v1/models", headers=bearer("blind"))).status_code == 403
    assert (await http.post(CHAT, json=chat(), headers=bearer("nothing"))).status_code == 403
    refused = await http.post(CHAT, json=chat(), headers=bearer("other"))
    assert refused.status_code == 403 and error_of(refused)["param"] == "model"
    listed = (await http.get("/v1/models", headers=bearer("other"))).json()
    assert listed["object"] == "list" and [model["id"] for model in listed["data"]] == ["other"]
    assert set(listed["data"][0]) == {"id", "object", "created", "owned_by"}
    assert len(scene.replicas[0].bodies) == 1


async def test_a_key_over_its_limits_gets_429_with_retry_after(
    keyed: tuple[Scene, httpx.AsyncClient],
) -> None:
    scene, http = keyed
    codes = [(await http.post(CHAT, json=chat(), headers=bearer("slow"))).status_code for _ in range(3)]
    assert codes == [200, 200, 429]
    refused = await http.post(CHAT, json=chat(), headers=bearer("slow"))
    assert 25 <= int(refused.headers["retry-after"]) <= 30
    assert "requests_per_minute=2" in error_of(refused)["message"]
    # 60 tokens: the estimate of the first (500 wanted) is taken at once; its real use (8) is settled at the end.
    scene.replicas[0].token_every_s = 0.1
    codes = [
        (await http.post(CHAT, json=chat(max_tokens=500), headers=bearer("thrifty"))).status_code for _ in range(3)
    ]
    assert codes == [200, 200, 200]
    scene.replicas[0].tokens, scene.replicas[0].token_every_s = 100, 0
    for stream in (True, False):
        assert (await http.post(CHAT, json=chat(stream=stream), headers=bearer("thrifty"))).status_code == (
            200 if stream else 429
        )


@pytest.mark.proves("every request closes its admission")
async def test_one_stream_at_a_time_means_one_and_the_next_may_come_after_it(
    keyed: tuple[Scene, httpx.AsyncClient],
) -> None:
    scene, http = keyed
    scene.replicas[0].tokens, scene.replicas[0].token_every_s = 1000, 0.02
    async with http.stream("POST", CHAT, json=chat(stream=True), headers=bearer("single")) as first:
        assert first.status_code == 200
        refused = await http.post(CHAT, json=chat(stream=True), headers=bearer("single"))
        assert refused.status_code == 429 and refused.headers["retry-after"] == "1"
    await until(lambda: scene.traffic.inflight == 0)
    scene.replicas[0].tokens = 1
    assert (await http.post(CHAT, json=chat(stream=True), headers=bearer("single"))).status_code == 200


@pytest.mark.proves("new orders replace the keys", "what only a new gateway can obey is refused by a running one")
async def test_keys_and_endpoints_change_in_a_running_gateway(keyed: tuple[Scene, httpx.AsyncClient]) -> None:
    scene, http = keyed
    scene.arbiter.set_keys(key("new"))
    await until(lambda: scene.arbiter.reports[-1].keys_seen == scene.arbiter.keys_version, 1.0)
    assert (await http.post(CHAT, json=chat(), headers=bearer("full"))).status_code == 401
    assert (await http.post(CHAT, json=chat(), headers=bearer("new"))).status_code == 200
    scene.server.change(settings(endpoints=("other",), request_timeout_s=7))
    assert (await http.post(CHAT, json=chat(), headers=bearer("new"))).status_code == 404
    with pytest.raises(ValueError, match="host of a running gateway"):
        scene.server.change(settings(endpoints=(MODEL,), host="127.0.0.2"))
    assert (await http.post(CHAT, json=chat(), headers=bearer("new"))).status_code == 404


@pytest.mark.proves(
    "a running gateway obeys a new bound on requests at a seat",
    "a running gateway obeys new bounds on held requests",
)
async def test_bounds_change_in_a_running_gateway(scene: Scene, http: httpx.AsyncClient) -> None:
    scene.server.change(settings(hold_max_age_s=0.05))
    too_long = await http.post(CHAT, json=chat())
    assert too_long.status_code == 429 and error_of(too_long)["code"] == "hold_too_long"
    scene.server.change(settings(hold_max_bytes=1))
    assert error_of(await http.post(CHAT, json=chat()))["code"] == "hold_full"
    scene.server.change(settings(request_timeout_s=0.05, max_inflight_per_seat=1))
    await scene.route(await scene.replica(token_every_s=0.1))
    assert (await http.post(CHAT, json=chat())).status_code == 504
    scene.server.change(settings(max_inflight_per_seat=1))
    assert [one.status_code for one in await asyncio.gather(*[http.post(CHAT, json=chat()) for _ in range(3)])] == [
        200
    ] * 3
    assert scene.replicas[0].most_running == 1


WRONG_BODIES: list[tuple[bytes, int, str | None, str | None]] = [
    (b"", 400, None, "invalid_json"),
    (b"{", 400, None, "invalid_json"),
    (b"\xff\xfe{}", 400, None, "invalid_json"),
    (b"[" * 100_000, 400, None, "invalid_json"),
    (b"[]", 400, None, "invalid_type"),
    (b"null", 400, None, "invalid_type"),
    (b"{}", 400, "model", "missing_required_parameter"),
    (json.dumps(chat(model=7)).encode(), 400, "model", "invalid_value"),
    (json.dumps(chat(model="nope")).encode(), 404, "model", "model_not_found"),
    (json.dumps(chat(messages="hello")).encode(), 400, "messages", "invalid_value"),
    (json.dumps(chat(messages=[])).encode(), 400, "messages", "invalid_value"),
    (json.dumps(chat(messages=[{"content": "x"}])).encode(), 400, "messages", "invalid_value"),
    (json.dumps(chat(stream="yes")).encode(), 400, "stream", "invalid_value"),
    (json.dumps(chat(max_tokens=-1)).encode(), 400, "max_tokens", "invalid_value"),
    (json.dumps(chat(max_tokens="10")).encode(), 400, "max_tokens", "invalid_value"),
    (json.dumps(chat(kv_transfer_params={})).encode(), 400, "kv_transfer_params", None),
]


@pytest.mark.proves(
    "fields that make an engine connect elsewhere are refused",
    "the type of a client's field is not guessed",
)
async def test_a_wrong_body_gets_an_error_that_names_the_field(scene: Scene, http: httpx.AsyncClient) -> None:
    for body, status, param, code in WRONG_BODIES:
        response = await http.post(CHAT, content=body, headers={"content-type": "application/json"})
        error = error_of(response)
        assert (response.status_code, error["param"], error["code"]) == (status, param, code), body[:80]
    assert scene.traffic.arrivals == 0


@pytest.mark.proves("only JSON is taken")
async def test_a_body_that_is_not_declared_json_is_refused(scene: Scene, http: httpx.AsyncClient) -> None:
    response = await http.post(CHAT, content=json.dumps(chat()), headers={"content-type": "text/plain"})
    assert response.status_code == 415 and error_of(response)


@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.proves("a body that turns out too large is a 413")
async def test_an_oversized_body_gets_413_and_nothing_is_executed(chunked: bool) -> None:
    async with running_gateway(max_body_bytes=10_000) as scene:
        await scene.route(await scene.replica())

        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(50):
                yield b"x" * 1000

        content = pieces() if chunked else b"x" * 50_000
        async with httpx.AsyncClient(base_url=scene.url, timeout=20, trust_env=False, verify=False) as http:
            response = await http.post(CHAT, content=content, headers={"content-type": "application/json"})
            assert response.status_code == 413 and error_of(response)["code"] == "body_too_large"
            fits = await http.post(CHAT, json=chat(user="x" * 9_000))
            assert fits.status_code == 200


OTHER_PATHS = [
    ("GET", "/", 404),
    ("GET", "/docs", 404),
    ("GET", "/redoc", 404),
    ("POST", "/invocations", 404),
    ("POST", "/v1/load_lora_adapter", 404),
    ("POST", "/collective_rpc", 404),
    ("POST", "/sleep", 404),
    ("POST", "/v1/chat/completions/", 404),
    ("POST", "/v1/chat/completions/../../sleep", 404),
    ("POST", "/v1/chat/completions%2f..%2fsleep", 404),
    ("GET", "/v1/chat/completions", 405),
    ("DELETE", "/v1/models", 405),
    ("OPTIONS", "/v1/completions", 405),
    ("HEAD", "/health", 405),
]


@pytest.mark.proves("paths that are nearly right are not redirected", "there is no /docs")
async def test_any_other_path_or_method_is_an_openai_shaped_404_or_405(scene: Scene, http: httpx.AsyncClient) -> None:
    replica = await scene.replica()
    await scene.route(replica)
    for method, path, status in OTHER_PATHS:
        response = await http.request(method, path)
        assert response.status_code == status, path
        if method != "HEAD":
            error_of(response)
    assert replica.bodies == []


async def test_the_published_description_names_the_four_routes_and_their_errors(
    scene: Scene, http: httpx.AsyncClient
) -> None:
    described = (await http.get("/openapi.json")).json()
    assert set(described["paths"]) == {"/health", "/v1/models", CHAT, "/v1/completions"}
    post = described["paths"][CHAT]["post"]
    schema = post["requestBody"]["content"]["application/json"]["schema"]
    assert {"model", "messages"} == set(schema["required"])
    assert {"400", "401", "403", "404", "413", "429", "502", "504"} <= set(post["responses"])


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)
_FIELDS = ["model", "messages", "prompt", "stream", "stream_options", "max_tokens", "n", "seed", "temperature"]
_NEARLY_RIGHT = st.builds(
    lambda start, changes, drop: {k: v for k, v in (start | changes).items() if k not in drop},
    st.sampled_from([chat(), {"model": MODEL, "prompt": "hello"}]),
    st.dictionaries(st.sampled_from(_FIELDS), _JSON, max_size=3),
    st.sets(st.sampled_from(_FIELDS), max_size=1),
)


@hypothesis_settings(
    max_examples=examples(150),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    body=st.binary(max_size=60) | _JSON.map(json.dumps).map(str.encode) | _NEARLY_RIGHT.map(json.dumps).map(str.encode),
    path=st.sampled_from([CHAT, "/v1/completions"]),
    media=st.sampled_from(["application/json", "text/plain", "", "application/json; charset=\xff"]),
)
def test_no_body_whatsoever_causes_a_5xx(body: bytes, path: str, media: str) -> None:
    """In the app itself, with no replica: what is right is held a moment and gets 429, all else 4xx."""

    async def ask() -> httpx.Response:
        app = build_app(settings(hold_max_age_s=0.002), FakeArbiter())
        app.state.gateway.obey(GatewayOrders(keys_version=1, keys=()))
        transport = httpx.ASGITransport(app, raise_app_exceptions=True)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
            return await http.post(path, content=body, headers={b"content-type": media.encode("latin-1")})

    response = asyncio.run(ask())
    assert 400 <= response.status_code < 500
    error_of(response)


async def test_requests_held_for_an_endpoint_that_is_removed_get_a_404_at_once(scene: Scene) -> None:
    async with httpx.AsyncClient(base_url=scene.url, timeout=20, trust_env=False) as http:
        held = [asyncio.create_task(http.post(CHAT, json=chat(stream=stream))) for stream in (False, True)]
        kept = asyncio.create_task(http.post(CHAT, json=chat(model="other")))
        await until(lambda: scene.traffic.held == 2)
        begin_s = time.monotonic()
        scene.server.change(settings(endpoints=("other",)))
        for answer in await asyncio.gather(*held):
            assert answer.status_code == 404 and answer.json()["error"]["code"] == "model_not_found"
        assert time.monotonic() - begin_s < 15.0
        assert not kept.done()
        replica = await scene.replica()
        scene.arbiter.route(replica, model="other")
        assert (await kept).status_code == 200
