"""What an endpoint says when its weights come from the store: to the bit what it says by vLLM's own loader.

Replicas as the arbiter has them made from a pool's file (CPU build of vLLM, no Ray), one engine at a time. The first
start from the store finds no flat form and reads in checkpoint order, the second reads what the first has published.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from ebbtide.config.loading.pool_file_loader import load
from ebbtide.pool.ids import EndpointName, seat_id
from ebbtide.storage.objects.manifest import Kind
from ebbtide_autoscaler.control.settings import seat_plan
from ebbtide_serve.replica.preparation import STORE
from tests.platform.storage.stores import store_at
from tests.serve_apps.replica_under_test import HEADERS, ReplicaUnderTest, until

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]

FILE = """
pool: {{name: p, slots: 2, shared_dir: shared}}
endpoints:
  - &tiny
    name: stored
    model: {model}
    gpus_per_replica: {gpus}
    engine:
      enforce_eager: true
      max_model_len: 256
      max_num_seqs: 2
      max_num_batched_tokens: 256
      kv_cache_memory_bytes: 16777216
  - <<: *tiny
    name: own
    load: {{weights: engine}}
"""
ANSWER = {"model": "tiny", "max_tokens": 16, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
PROMPTS = ("def main():", "import sys\nclass A:", "The tide", "for name in sorted(names):\n    print(" * 10, "\n")
START_S = 500.0  # 20 to 60 s on two quiet cores


class Pool:
    """A file and what its replicas share; each replica is on a node of its own."""

    def __init__(self, folder: Path, model: Path, gpus: int) -> None:
        self.folder, self.gpus = folder, gpus
        (folder / "pool.yaml").write_text(FILE.format(model=model, gpus=gpus))
        self.config = load(folder / "pool.yaml")
        (folder / "shared").mkdir()
        self.store = store_at(folder / "shared" / STORE)

    @asynccontextmanager
    async def replica(self, node: str, endpoint: str) -> AsyncIterator[ReplicaUnderTest]:
        work = self.folder / node
        work.mkdir()
        seat = seat_id(EndpointName(endpoint), 0)
        plan = seat_plan(self.config, seat, token="t", cache_dir=str(work / "cache"))
        assert plan is not None
        made = ReplicaUnderTest(
            plan.engine,
            work,
            model_dir=plan.model,
            args=dict(plan.engine_args),
            load=dict(plan.load),
            ranks=plan.slots,
            shared_dir=str(self.config.pool.shared_dir),
            cache_dir=plan.cache_dir,
        )
        children = []
        try:
            await made.until_ready(START_S)
            children = made.children()
            yield made
        finally:
            made.clean_up(children)  # of one that is not ready they end with it

    def flat_form_is_named(self) -> bool:
        kinds = [self.store.manifest(ref.object).kind for ref in self.store.refs.list()]
        return kinds.count(Kind.FLAT) == self.gpus  # each rank's tag


async def said(replica: ReplicaUnderTest) -> list[Any]:
    """One prompt after the other: what else is in a batch may change the last bit of a sum."""
    found = []
    async with aiohttp.ClientSession() as client:
        for prompt in PROMPTS:
            body = ANSWER | {"prompt": prompt, "logprobs": 5}
            async with client.post(replica.report["url"] + "/v1/completions", json=body, headers=HEADERS) as reply:
                answer = await reply.json()
                assert reply.status == 200, answer
            found.append({name: answer["choices"][0][name] for name in ("text", "token_ids", "logprobs")})
    return found


def ways(replica: ReplicaUnderTest) -> list[tuple[int, str]]:
    return sorted((load["rank"], load["way"]) for load in replica.report["loads"])


def by(way: str, gpus: int) -> list[tuple[int, str]]:
    return [(rank, way) for rank in range(gpus)]


@pytest.mark.hunt  # short: bare engines in tests/serve_apps/vllm/test_load_formats.py; three starts take 1 to 3 min
@pytest.mark.parametrize("gpus", [1, 2])
async def test_tokens_and_logprobs_from_the_store_are_those_of_vllms_own_loader(
    tmp_path: Path, tiny_model: Path, gpus: int
) -> None:
    pool = Pool(tmp_path, tiny_model, gpus)
    async with pool.replica("a", "own") as own:
        assert ways(own) == by("vllm", gpus)
        wanted = await said(own)
    assert [len(one["token_ids"]) for one in wanted] == [16] * len(PROMPTS)
    assert [len(one["logprobs"]["top_logprobs"]) for one in wanted] == [16] * len(PROMPTS)
    assert len({one["text"] for one in wanted}) == len(PROMPTS), "the answers tell the prompts apart"

    async with pool.replica("b", "stored") as first:
        assert ways(first) == by("ebbtide", gpus)
        assert await said(first) == wanted
        await until(pool.flat_form_is_named, 300.0, lambda: first.log.read_text()[-3000:])

    async with pool.replica("c", "stored") as second:
        assert ways(second) == by("ebbtide_flat", gpus), second.report["loads"]
        assert await said(second) == wanted
