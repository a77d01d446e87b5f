"""Several endpoints behind one gateway: a request goes to its own model's replicas, and no model waits for another."""

import asyncio
import json
from collections import Counter

import httpx

from tests.builders.gateway import bearer, key
from tests.serve_apps.gateway.fakes import MODEL, FakeReplica, Scene, chat, running_gateway, until

CHAT, TEXT, OTHER = "/v1/chat/completions", "/v1/completions", "other"


def asked_for(replica: FakeReplica) -> Counter[str]:
    return Counter(json.loads(body)["model"] for body in replica.bodies)


async def route(scene: Scene, model: str, *replicas: FakeReplica) -> None:
    scene.arbiter.route(*replicas, model=model)
    version = scene.arbiter.table.version
    await until(lambda: scene.arbiter.reports[-1].routes_seen >= version)


async def test_every_request_reaches_a_replica_of_its_own_model_and_no_other(
    scene: Scene, http: httpx.AsyncClient
) -> None:
    ones = [await scene.replica(token_every_s=0.002) for _ in range(2)]
    others = [await scene.replica(token_every_s=0.002) for _ in range(2)]
    await route(scene, MODEL, *ones)
    await route(scene, OTHER, *others)

    async def ask(number: int) -> int:
        model = (MODEL, OTHER)[number % 2]
        path, body = ((CHAT, chat(model=model)), (TEXT, {"model": model, "prompt": "a"}))[number // 2 % 2]
        return (await http.post(path, json=body | {"stream": number % 3 == 0})).status_code

    assert set(await asyncio.gather(*[ask(number) for number in range(80)])) == {200}
    for replicas, model in ((ones, MODEL), (others, OTHER)):
        found = [asked_for(replica) for replica in replicas]
        assert sum(found, Counter()) == {model: 40} and all(10 <= one[model] <= 30 for one in found), found

    def completed() -> dict[str, int]:
        return {name: one.completed for name, one in scene.server.gateway.report().traffic.items()}

    await until(lambda: completed() == {MODEL: 40, OTHER: 40})  # counted just after the last byte went out


async def test_a_model_without_a_replica_holds_its_own_requests_only(scene: Scene, http: httpx.AsyncClient) -> None:
    await route(scene, OTHER, await scene.replica())
    held = asyncio.create_task(http.post(CHAT, json=chat()))
    await until(lambda: scene.traffic.held == 1)
    assert (await http.post(CHAT, json=chat(model=OTHER))).status_code == 200
    assert not held.done() and asked_for(scene.replicas[0]) == {OTHER: 1}
    late = await scene.replica()
    await route(scene, MODEL, late)
    assert (await held).status_code == 200 and asked_for(late) == {MODEL: 1}


async def test_a_retry_goes_to_another_replica_of_the_same_model(scene: Scene, http: httpx.AsyncClient) -> None:
    dying, spare, foreign = await scene.replica("die_first"), await scene.replica(), await scene.replica()
    await route(scene, OTHER, foreign)
    await route(scene, MODEL, dying, spare)
    assert {(await http.post(CHAT, json=chat())).status_code for _ in range(4)} == {200}
    assert len(dying.bodies) == 1 and asked_for(spare) == {MODEL: 4} and not foreign.bodies


async def test_a_flood_of_one_model_by_one_key_does_not_keep_another_from_the_other_model() -> None:
    async with (
        running_gateway(keys=(key("a"), key("b")), max_inflight_per_seat=2, hold_max_requests=20) as scene,
        httpx.AsyncClient(base_url=scene.url, timeout=30, trust_env=False) as http,
    ):
        full, free = await scene.replica(tokens=1, token_every_s=30.0), await scene.replica()
        await route(scene, MODEL, full)
        await route(scene, OTHER, free)
        flood = [asyncio.create_task(http.post(CHAT, json=chat(), headers=bearer("a"))) for _ in range(40)]
        await until(lambda: scene.traffic.held == 20 and scene.traffic.inflight == 2)
        for _ in range(5):
            assert (await http.post(CHAT, json=chat(model=OTHER), headers=bearer("b"))).status_code == 200
        for task in flood:
            task.cancel()
        await asyncio.gather(*flood, return_exceptions=True)
