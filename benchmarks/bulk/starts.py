"""Single starts of a real engine, each as a replica on a node that has never seen the model.

Every start is a process of its own with an empty node directory. Compilers keep caches of their own in the home or
temporary directory of the machine unless told otherwise; here each node has its own place for them, so that no start
finds what another has compiled but by way of the store.

*Cold* drops the page cache before, *warm* has just read the model and the store.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bulk.outcome import GENTLY, drop_cached

START_S = 300.0  # more than thrice what a compiling one takes on two quiet cores
GENTLE_START_S = 1200.0  # where others have the cores
FIRST = '{"first_token_at_s"'
SHARED, LOG = "shared", "log"
# Before it answers, an engine runs a batch of as many tokens as it may have. On one core that took 9 s for 256 tokens
# and two layers, which says nothing about loading or compiling; a GPU does not notice.
COMMON: dict[str, Any] = {
    "max_model_len": 256,
    "max_num_seqs": 2,
    "max_num_batched_tokens": 16,
    "kv_cache_memory_bytes": 64 << 20,
}
# What an engine or a compiler under it would keep on the machine for all (torch/_inductor/runtime/cache_dir_utils.py:
# a directory in /tmp by the name of the user).
CACHES_OF_A_NODE = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
_ERROR = re.compile(r"^[A-Za-z_][\w.]*(Error|Exception|Failed|Refused|Busy|Exit|Interrupt)\b")
_SHOWN = 400


class StartFailed(Exception):
    """An engine did not come to its first token; says the last useful line of what it wrote."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One start.

    Attributes:
        weights: ``load.weights`` of an endpoint; ``engine`` is vLLM's own loader.
        caches: ``load.caches`` of an endpoint: whether caches come from the store.
        compiled: with torch.compile, as vLLM has it by default; else eager.
        settle: afterwards publish what the next start can use.
    """

    weights: str
    caches: bool = True
    ranks: int = 1
    compiled: bool = False
    cold: bool = False
    settle: bool = False

    @property
    def args(self) -> dict[str, Any]:
        """Of the engine."""
        eager = {} if self.compiled else {"enforce_eager": True}
        return COMMON | eager | ({"distributed_executor_backend": "mp"} if self.ranks > 1 else {})


@dataclass(frozen=True, slots=True)
class Started:
    """What came of one.

    Attributes:
        seconds: from the start of the process to the first token.
        cpu_s: of all its processes until then; says something also where others have the cores.
        restored_bytes: of caches that it found in its own directory before the engine was made.
        ways: load formats that filled the parameters, by rank.
        disk_bytes_by_rank: what each rank's process had the disk read for it until then, by its ``/proc/PID/io``, also
            by pages that it maps. What another process had brought into the page cache is not in it. Empty where the
            kernel does not tell.
    """

    seconds: float
    cpu_s: float
    stages_s: Mapping[str, float]
    restored_bytes: int
    bytes_by_rank: tuple[int, ...]
    ways: tuple[str, ...]
    disk_bytes_by_rank: tuple[int, ...] = ()


class Starts:
    """Starts engines of one model over one shared directory."""

    def __init__(self, folder: Path, model: Path) -> None:
        self._folder, self._model, self._nodes = folder, model, 0

    def start(self, wanted: Wanted) -> Started:
        """Start one on a new node, and end it. Raises StartFailed."""
        self._nodes += 1
        node, shared = self._folder / f"node-{self._nodes}", self._folder / SHARED
        (node / "slots").mkdir(parents=True)
        shared.mkdir(exist_ok=True)
        files = [path for path in (*self._model.iterdir(), *shared.rglob("*")) if path.is_file()]
        if wanted.cold:
            drop_cached(files)
        else:
            for path in files:
                _touch(path)
        told = {
            "model": str(self._model),
            "args": wanted.args,
            "ranks": wanted.ranks,
            "load": {"weights": wanted.weights, "caches": wanted.caches},
            "shared_dir": str(shared),
            "node_dir": str(node),
            "settle": wanted.settle,
        }
        try:
            return _run(told, node)
        except StartFailed as error:
            kept = self._folder.parent / f"failed-start-{self._nodes}.log"
            shutil.copyfile(node / LOG, kept)
            raise StartFailed(f"{error} ({kept.name})") from error
        finally:
            shutil.rmtree(node, ignore_errors=True)


def started(line: str, began_s: float) -> Started:
    """What a process printed, as a `Started`; ``began_s`` in seconds since the epoch."""
    found = json.loads(line)
    loads = sorted(found["loads"], key=lambda load: load["rank"])
    return Started(
        found["first_token_at_s"] - began_s,
        found["cpu_s"],
        found["stages_s"],
        found["restored_bytes"],
        tuple(sum(load["bytes_by_mode"].values()) for load in loads),
        tuple(load["way"] for load in loads),
        tuple(found["disk_bytes_by_rank"]),
    )


def published(log: str) -> list[str]:
    """What a start says at its end about what it has left in the store, or why not."""
    after = log[log.find(FIRST) :]
    return [line for line in after.splitlines() if re.match(r"(caches of )?bench: ", line)]


def last_useful_line(log: str) -> str:
    """The line of a log that says best why a process ended: the last that names an error, else the last of all."""
    lines = [line.strip() for line in log.splitlines()]
    errors = [line for line in lines if _ERROR.match(line)]
    others = [line for line in lines if re.search(r"\w", line)]
    line = (errors or others or ["it wrote nothing"])[-1]
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN // 4]} ... {line[-3 * _SHOWN // 4 :]}"


def _run(told: Mapping[str, Any], node: Path) -> Started:
    command = [sys.executable, "-m", "benchmarks.bulk.engine_start", json.dumps(told)]
    environment = {**os.environ, **{name: str(node / place) for name, place in CACHES_OF_A_NODE.items()}}
    log, limit_s = node / LOG, GENTLE_START_S if os.environ.get(GENTLY) else START_S
    began_s = time.time()
    with log.open("w") as file:
        child = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        try:
            child.wait(limit_s)
        except subprocess.TimeoutExpired as error:
            told_last = last_useful_line(log.read_text(errors="replace"))
            raise StartFailed(f"no first token within {limit_s:.0f} s; the last it said: {told_last}") from error
        finally:
            _end_all(child)
    text = log.read_text(errors="replace")
    lines = [line for line in text.splitlines() if line.startswith(FIRST)]
    if not lines or child.returncode:
        raise StartFailed(f"it ended with {child.returncode}: {last_useful_line(text)}")
    if told["settle"]:
        print("\n".join(f"    {line}" for line in published(text)), flush=True)
    return started(lines[0], began_s)


def _end_all(child: subprocess.Popen[bytes]) -> None:
    """The process, and what it has started, which are one session."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _touch(path: Path) -> None:
    with path.open("rb", buffering=0) as file:
        while file.read(16 << 20):
            pass
