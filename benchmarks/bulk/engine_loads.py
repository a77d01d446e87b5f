"""Starts of a real engine: seconds to the first token by each way to load, bytes for each rank, and compiled code.

Every start is a process of its own on a "node" of its own (an empty node directory), as a replica on a node that has
never seen the model. *Cold* drops the page cache before; *warm* has just read the files.
"""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.bulk.outcome import drop_cached
from benchmarks.rows import Bar, Row, row
from ebbtide_serve.examples.tiny_model import make_model

START_S = 600.0
WAYS = ("engine", "checkpoint", "flat")  # `load.weights` of an endpoint; "engine" is vLLM's own
ARGS: dict[str, Any] = {
    "max_model_len": 256,
    "max_num_seqs": 2,
    "max_num_batched_tokens": 256,
    "kv_cache_memory_bytes": 64 << 20,
}
EAGER = {**ARGS, "enforce_eager": True}
ARTEFACT_GOAL, TP2_GOAL = 2.0, 0.5


@dataclass(frozen=True, slots=True)
class Started:
    """One start."""

    seconds: float  # from the start of the process to the first token
    stages_s: dict[str, float]
    bytes_by_rank: tuple[int, ...]
    ways: tuple[str, ...]


class Starts:
    """Starts engines of one model over one shared directory."""

    def __init__(self, folder: Path, model: Path) -> None:
        self._folder, self._model, self._nodes = folder, model, 0

    def start(
        self,
        shared: str,
        *,
        weights: str,
        caches: bool = False,
        ranks: int = 1,
        args: dict[str, Any] = EAGER,
        cold: bool = True,
        settle: bool = False,
    ) -> Started:
        """Start one on a new node, and end it."""
        self._nodes += 1
        node = self._folder / f"node-{self._nodes}"
        (node / "slots").mkdir(parents=True)
        shared_dir = self._folder / shared
        shared_dir.mkdir(exist_ok=True)
        files = [path for path in (*self._model.iterdir(), *shared_dir.rglob("*")) if path.is_file()]
        if cold:
            drop_cached(files)
        else:
            for path in files:
                path.read_bytes()
        told = {
            "model": str(self._model),
            "args": args,
            "ranks": ranks,
            "load": {"weights": weights, "caches": caches},
            "shared_dir": str(shared_dir),
            "node_dir": str(node),
            "settle": settle,
        }
        began_s = time.time()
        command = [sys.executable, "-m", "benchmarks.bulk.engine_start", json.dumps(told)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_S, check=False)
        lines = [line for line in done.stdout.splitlines() if line.startswith('{"first_token_at_s"')]
        if not lines:
            raise RuntimeError(f"an engine did not start ({weights}): {done.stdout[-1500:]}{done.stderr[-1500:]}")
        shutil.rmtree(node, ignore_errors=True)
        found = json.loads(lines[0])
        loads = sorted(found["loads"], key=lambda load: load["rank"])
        return Started(
            found["first_token_at_s"] - began_s,
            found["stages_s"],
            tuple(sum(load["bytes_by_mode"].values()) for load in loads),
            tuple(load["way"] for load in loads),
        )


def measure(folder: Path, *, quick: bool) -> Iterator[tuple[list[Row], list[Bar]]]:
    """Ways to load; bytes by rank; compiled code. One part after the other, since each may fail by itself."""
    model = folder / "model"
    make_larger(model, layers=2 if quick else 12)
    starts = Starts(folder, model)
    rounds = 1 if quick else 3
    yield _ways(starts, rounds)
    yield _tp2(starts)
    yield _artefacts(starts, rounds)


def make_larger(out: Path, *, layers: int) -> None:
    """The tiny model's tokenizer with a model of some 100 MB a layer, so that a load takes a time that one can see."""
    if not make_model(out):
        return
    config = LlamaConfig.from_pretrained(out)
    config.hidden_size, config.intermediate_size, config.num_hidden_layers = 2048, 5632, layers
    config.num_attention_heads, config.num_key_value_heads, config.head_dim = 16, 8, 128
    LlamaForCausalLM(config).bfloat16().save_pretrained(out)


def _ways(starts: Starts, rounds: int) -> tuple[list[Row], list[Bar]]:
    """First the store is filled by starts that do not count."""
    for weights in ("checkpoint", "flat", "flat"):
        starts.start("ways", weights=weights, settle=True, cold=False)
    seconds: dict[tuple[str, str], list[float]] = {}
    loading: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds):
        for cold in (True, False):
            for weights in WAYS:
                one = starts.start("ways", weights=weights, cold=cold)
                if weights != "engine":
                    expected = {"flat": "ebbtide_flat", "checkpoint": "ebbtide"}[weights]
                    assert one.ways == (expected,), f"asked for {weights}, loaded by {one.ways}"
                state = "cold" if cold else "warm"
                seconds.setdefault((state, weights), []).append(one.seconds)
                loading.setdefault((state, weights), []).append(one.stages_s.get("weights", 0.0))
    rows = [row(f"engine start, {s}", f"first token, load.weights {w}", "s", v) for (s, w), v in seconds.items()]
    rows += [row(f"engine start, {s}", f"weights, load.weights {w}", "s", v) for (s, w), v in loading.items()]
    return rows, []


def _tp2(starts: Starts) -> tuple[list[Row], list[Bar]]:
    args = {**EAGER, "distributed_executor_backend": "mp"}
    for _ in range(2):
        starts.start("ways", weights="flat", ranks=2, args=args, settle=True, cold=False)
    whole = starts.start("ways", weights="flat")
    halves = starts.start("ways", weights="flat", ranks=2, args=args)
    share = max(halves.bytes_by_rank) / whole.bytes_by_rank[0]
    rows = [
        row("bytes read", "TP=1, its rank", "bytes", [whole.bytes_by_rank[0]]),
        *(row("bytes read", f"TP=2, rank {i}", "bytes", [n]) for i, n in enumerate(halves.bytes_by_rank)),
    ]
    # What cannot be cut (norms) is read by each: 1 % of a small model.
    met = len(halves.bytes_by_rank) == 2 and share <= TP2_GOAL * 1.02
    return rows, [Bar("tp2_bytes_per_rank", f"{TP2_GOAL} of TP=1's bytes", round(share, 4), met)]


def _artefacts(starts: Starts, rounds: int) -> tuple[list[Row], list[Bar]]:
    """With compilation. "without" is the same replica, told to keep no caches in the store."""
    starts.start("artefacts", weights="flat", caches=True, args=ARGS, settle=True, cold=False)
    starts.start("artefacts", weights="flat", caches=True, args=ARGS, settle=True, cold=False)
    seconds: dict[tuple[str, bool], list[float]] = {}
    stages: dict[tuple[str, bool], list[float]] = {}
    for _ in range(rounds):
        for cold in (True, False):
            for caches in (False, True):
                one = starts.start("artefacts", weights="flat", caches=caches, args=ARGS, cold=cold)
                seconds.setdefault(("cold" if cold else "warm", caches), []).append(one.seconds)
                stages.setdefault(("cold" if cold else "warm", caches), []).append(one.stages_s.get("compile", 0.0))
    words = {True: "restored caches", False: "no caches"}
    rows = [row(f"compiled start, {s}", f"first token, {words[c]}", "s", v) for (s, c), v in seconds.items()]
    rows += [row(f"compiled start, {s}", f"compile, {words[c]}", "s", v) for (s, c), v in stages.items()]
    ratio = min(median(seconds[state, False]) / median(seconds[state, True]) for state in ("cold", "warm"))
    return rows, [Bar("artefact_restart", f">= {ARTEFACT_GOAL} x sooner", round(ratio, 3), ratio >= ARTEFACT_GOAL)]
