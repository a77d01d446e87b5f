"""What is tried inside vLLM without an engine: programs for `engine_process.py`, each with its ``argument``."""

# Whatever fills the parameters in it: when the weights count as done is the workers' to say.
WORKERS = """
import json
from vllm.v1.worker.cpu_worker import CPUWorker
from vllm.v1.worker.gpu_worker import Worker
from ebbtide_serve.loading.start_record import RECORD
from ebbtide_serve.vllm.worker import PoolCPUWorker, PoolGPUWorker
for ours, theirs in ((PoolCPUWorker, CPUWorker), (PoolGPUWorker, Worker)):
    RECORD.__init__()
    during = []
    theirs.load_model = lambda self, *args, **kwargs: during.append("weights_done" in RECORD.moments_s)
    ours.__new__(ours).load_model()
    print(json.dumps({"during": during, "after": "weights_done" in RECORD.moments_s}))
"""

# What vLLM does with a model that names secondary weights (as Ultravox), without an engine around it.
SOURCES = """
import json
from vllm.config import LoadConfig
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from ebbtide_serve.vllm.load_formats import CheckpointLoader
extra, model, other = argument
loader = CheckpointLoader(LoadConfig(load_format="ebbtide", model_loader_extra_config=extra))
for place in (model, other):
    source = DefaultModelLoader.Source(place, revision=None)
    assert list(loader._get_weights_iterator(source))
    print(json.dumps({"used": loader._read.outcome()[0]}))
"""

# vLLM's own loading of a model, without an engine around it; says how many had a turn whenever a tensor came.
LOADS = """
import contextlib, json
from types import SimpleNamespace
import torch
from vllm.config import LoadConfig
from ebbtide_serve.vllm import load_formats
from ebbtide_serve.loading.rank_load import RankLoad

load_formats.get_tensor_model_parallel_rank = lambda: 0
load_formats.get_tensor_model_parallel_world_size = lambda: 1
load_formats._facts = lambda model, config: SimpleNamespace(rank=0, quantizes_online=True)
load_formats.CheckpointLoader._init_ep_weight_filter = lambda self, config: None
load_formats.CheckpointLoader.local_expert_ids = None
taken = ended = 0

@contextlib.contextmanager
def turn(settings, rank, *, record, say):
    global taken, ended
    assert settings.loaders == 3
    taken += 1
    yield
    ended += 1

load_formats.turn_to_load = turn
RankLoad.load.__globals__["turn_to_load"] = turn

class Model(torch.nn.Module):
    def load_weights(self, weights):
        seen.extend(taken - ended for _ in weights)

extra, places = argument
for place in places:
    config = SimpleNamespace(model=place, revision=None, quantization=None, multimodal_config=None)
    for again in (False, True):
        loader, seen, before = load_formats.CheckpointLoader(
            LoadConfig(load_format="ebbtide", model_loader_extra_config=extra)
        ), [], taken
        if again:
            Model().load_weights(loader.get_all_weights(config, Model()))
        else:
            loader.load_weights(Model(), config)
        print(json.dumps({"turns": taken - before, "at once": sorted(set(seen)), "open": taken - ended}))
"""
