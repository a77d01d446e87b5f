"""Whatever way weights are read in by a loader of ours, it takes one turn of the pool's, and never two at once."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serve_apps.loading.test_vllm_formats import stored
from tests.serve_apps.replica_under_test import MODEL_CACHE

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1500)]

# vLLM's own loading of a model, without an engine around it; says how many had a turn whenever a tensor came.
LOADS = """
import contextlib, json, sys
from types import SimpleNamespace
import torch
from vllm.config import LoadConfig
from ebbtide_serve.loading import vllm_formats
from ebbtide_serve.loading.rank_load import RankLoad

vllm_formats.get_tensor_model_parallel_rank = lambda: 0
vllm_formats.get_tensor_model_parallel_world_size = lambda: 1
vllm_formats._facts = lambda model, config: SimpleNamespace(rank=0, quantizes_online=True)
vllm_formats.CheckpointLoader._init_ep_weight_filter = lambda self, config: None
vllm_formats.CheckpointLoader.local_expert_ids = None
taken = ended = 0

@contextlib.contextmanager
def turn(settings, rank, *, record, say):
    global taken, ended
    assert settings.loaders == 3
    taken += 1
    yield
    ended += 1

vllm_formats.turn_to_load = turn
RankLoad.load.__globals__["turn_to_load"] = turn

class Model(torch.nn.Module):
    def load_weights(self, weights):
        seen.extend(taken - ended for _ in weights)

extra, places = json.loads(sys.argv[1])
for place in places:
    config = SimpleNamespace(model=place, revision=None, quantization=None)
    for again in (False, True):
        loader, seen, before = vllm_formats.CheckpointLoader(
            LoadConfig(load_format="ebbtide", model_loader_extra_config=extra)
        ), [], taken
        if again:
            Model().load_weights(loader.get_all_weights(config, Model()))
        else:
            loader.load_weights(Model(), config)
        print(json.dumps({"turns": taken - before, "at once": sorted(set(seen)), "open": taken - ended}))
"""


def test_a_load_and_a_reload_take_one_turn_each_whoever_reads(tiny_model: Path, tmp_path: Path) -> None:
    model, found = stored(tiny_model, tmp_path / "store")
    extra = {"store": str(tmp_path / "store"), "object": found, "loaders": 3}
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CACHE_ROOT": str(MODEL_CACHE)}
    command = [sys.executable, "-c", LOADS, json.dumps([extra, [model, str(tiny_model)]])]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"turns"')]
    assert told == [{"turns": 1, "at once": [1], "open": 0}] * 4, "ours and vLLM's own, loaded and loaded again"
