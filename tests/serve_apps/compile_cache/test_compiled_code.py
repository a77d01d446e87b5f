"""Compiled code of a real engine (CPU build of vLLM): kept by one node's first start, used by another's.

No time is measured. The compiler's own log says what it found, and the files say whether it wrote any.
"""

import hashlib
import json
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from safetensors.torch import load_file, save_file

from ebbtide.storage.objects.manifest import Kind
from ebbtide_serve.replica.preparation import CACHES, STORE
from tests.platform.storage.stores import store_at
from tests.serve_apps.replica_under_test import HEADERS, ReplicaUnderTest, until

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]

ENGINE = "ebbtide_serve.vllm.engine:VllmEngine"
# Not eager: vLLM compiles unless it is told otherwise.
ARGS = {"max_model_len": 128, "max_num_seqs": 2, "max_num_batched_tokens": 16, "kv_cache_memory_bytes": 16 << 20}
ANSWER = {"model": "tiny", "max_tokens": 12, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
START_S = 900.0  # one that compiles takes 70 s on two quiet cores
# The modules that look for a graph in the caches; INFO is enough.
LOGS = "torch._inductor.codecache,torch._functorch._aot_autograd.autograd_cache"
_LOOK_UP = re.compile(r"(fx graph|AOTAutograd) cache (hit|miss) for key (\w+)")


@pytest.fixture
def model(tiny_model: Path, tmp_path: Path) -> Path:
    """Its first two layers: each layer takes the compiler 12 s."""
    out = tmp_path / "model"
    shutil.copytree(tiny_model, out)
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2}))
    tensors = load_file(out / "model.safetensors")
    kept = {name: data for name, data in tensors.items() if not re.match(r"model\.layers\.[2-9]", name)}
    assert len(kept) < len(tensors)
    save_file(kept, out / "model.safetensors", {"format": "pt"})
    return out


@asynccontextmanager
async def replica(folder: Path, node: str, model: Path) -> AsyncIterator[ReplicaUnderTest]:
    work = folder / node
    work.mkdir()
    told: dict[str, Any] = {"shared_dir": str(folder / "shared"), "cache_dir": str(work / "cache")}
    made = ReplicaUnderTest(ENGINE, work, model_dir=str(model), args=ARGS, **told)
    children = []
    try:
        await made.until_ready(START_S)
        children = made.children()
        yield made
    finally:
        made.clean_up(children)  # of one that is not ready they end with it


async def said(replica: ReplicaUnderTest) -> list[list[int]]:
    """Without logprobs: their ranks are counted by code that vLLM compiles when they are first asked for."""
    found = []
    async with aiohttp.ClientSession() as client:
        for prompt in ("def main():", "import sys\nclass A:"):
            body = ANSWER | {"prompt": prompt}
            async with client.post(replica.report["url"] + "/v1/completions", json=body, headers=HEADERS) as reply:
                answer = await reply.json()
                assert reply.status == 200, answer
            found.append(answer["choices"][0]["token_ids"])
    return found


def compiled(folder: Path, node: str) -> dict[str, str]:
    """The machine code in a replica's own directory: names, and what is in the files."""
    (own,) = (path for path in (folder / node / "cache" / CACHES).iterdir() if path.is_dir())
    return {
        path.relative_to(own).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(own.rglob("*.so"))
    }


def looked_up(replica: ReplicaUnderTest) -> dict[str, set[str]]:
    """By ``hit`` and ``miss``: the graphs that the compiler looked for."""
    found: dict[str, set[str]] = {"hit": set(), "miss": set()}
    for _, outcome, key in _LOOK_UP.findall(replica.log.read_text()):
        found[outcome].add(key)
    return found


@pytest.mark.hunt  # short: made-up files in test_shelf.py; two starts of which one compiles take 2 min
async def test_another_node_compiles_nothing_and_says_the_same(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_LOGS", LOGS)
    (tmp_path / "shared").mkdir()
    store = store_at(tmp_path / "shared" / STORE)

    async with replica(tmp_path, "first", model) as first:
        await until(
            lambda: Kind.ARTEFACT in {store.manifest(ref.object).kind for ref in store.refs.list()},
            300.0,
            lambda: first.log.read_text()[-3000:],
        )
        answers = await said(first)
        assert [len(one) for one in answers] == [12, 12]
        graphs, code = looked_up(first), compiled(tmp_path, "first")
        assert graphs["miss"] and not graphs["hit"], "it compiles, and the log says so"
        assert code

    async with replica(tmp_path, "second", model) as second:
        assert await said(second) == answers
        again = looked_up(second)
        assert again["hit"] and not again["miss"], "every graph is found"
        assert again["hit"] <= graphs["miss"], "and is one that the first start has compiled"
        assert compiled(tmp_path, "second") == code, "no code but what was restored, and that untouched"
