"""A whole replica (CPU build of vLLM, no Ray) from the store: the second start finds what the first one left.

One test with several claims, since each of its two starts takes half a minute.
"""

import json
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from ebbtide.storage.names import ObjectId
from ebbtide.storage.objects.manifest import Kind
from ebbtide.storage.objects.object_store import ObjectStore
from ebbtide_serve.replica.preparation import STORE
from tests.platform.storage.stores import store_at
from tests.serve_apps.replica_under_test import HEADERS, ReplicaUnderTest, until

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1200)]

ENGINE = "ebbtide_serve.vllm.engine:VllmEngine"
ARGS = {
    "max_model_len": 128,
    "max_num_seqs": 2,
    "max_num_batched_tokens": 128,
    "kv_cache_memory_bytes": 16 << 20,
    "enforce_eager": True,
}
START_S = 500.0  # 20 s on a quiet machine


async def answer(replica: ReplicaUnderTest) -> Any:
    body = {"model": "tiny", "prompt": "def main():", "max_tokens": 12, "temperature": 0, "logprobs": 1}
    url = replica.report["url"] + "/v1/completions"
    async with aiohttp.ClientSession() as client, client.post(url, json=body, headers=HEADERS) as reply:
        return json.loads(await reply.text())["choices"][0]


async def start(tmp_path: Path, name: str, model: str) -> ReplicaUnderTest:
    """With a node of its own for its caches."""
    work = tmp_path / name
    work.mkdir()
    replica = ReplicaUnderTest(
        ENGINE,
        work,
        model_dir=model,
        args=ARGS,
        shared_dir=str(tmp_path / "shared"),
        cache_dir=str(work / "cache"),
    )
    try:
        await replica.until_ready(START_S)
    except BaseException:
        replica.clean_up(replica.children())
        raise
    return replica


def kinds(store: ObjectStore) -> dict[Kind, ObjectId]:
    return {store.manifest(one).kind: one for one in store.list_objects()}


def named(store: ObjectStore) -> dict[Kind, ObjectId]:
    """Those that are found by their names, which they get a moment after they are there."""
    refs = {ref.object for ref in store.refs.list()}
    return {kind: one for kind, one in kinds(store).items() if one in refs}


@pytest.mark.hunt  # short: the formats in loading/test_vllm_formats.py, the caches in artefacts/; two starts take 53 s
async def test_a_second_start_reads_the_flat_form_and_the_caches_and_says_the_same(
    tmp_path: Path, tiny_model: Path
) -> None:
    (tmp_path / "shared").mkdir()
    first = await start(tmp_path, "first", str(tiny_model))
    children = first.children()
    try:
        assert list(first.report["stages_s"]) == [
            *("lease", "model", "caches", "import", "process", "weights", "compile", "warm-up", "server")
        ]
        (load,) = first.report["loads"]
        assert (load["rank"], load["way"]) == (0, "ebbtide")
        assert "there is no flat form of it yet" in load["why"][0]
        said = await answer(first)
        store = store_at(tmp_path / "shared" / STORE)
        everything = {Kind.MODEL, Kind.FLAT, Kind.ARTEFACT}
        await until(lambda: named(store).keys() == everything, 300.0, lambda: first.log.read_text()[-3000:])
        assert await answer(first) == said
    finally:
        first.clean_up(children)

    second = await start(tmp_path, "second", str(tiny_model))
    children = second.children()
    try:
        (load,) = second.report["loads"]
        assert load["way"] == "ebbtide_flat"
        assert "flat form" not in " ".join(load["why"])
        assert sum(load["bytes_by_mode"].values()) == store.manifest(kinds(store)[Kind.FLAT]).size_bytes
        assert (await answer(second))["text"] == said["text"]
        assert (await answer(second))["logprobs"] == said["logprobs"]
        restored = list((tmp_path / "second" / "cache" / "replicas").glob("*/vllm/modelinfos/*.json"))
        assert restored
        time.sleep(2.0)
        assert kinds(store).keys() == everything
        assert len(store.list_objects()) == 3, "nothing was published again"
    finally:
        second.clean_up(children)
