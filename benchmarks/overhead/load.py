"""The load generator: ``vllm bench serve``, which nobody here wrote, in a process of its own."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from benchmarks.pool_run import RunFailed

PROMPT_TOKENS = 32
SEED = 3


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go."""

    name: str
    url: str  # without a path
    header: str = ""  # NAME=VALUE


@dataclass(frozen=True, slots=True)
class Load:
    """How much at once."""

    streams: int
    requests: int
    tokens: int  # of each answer


class Generator:
    """A running load generator."""

    def __init__(self, process: "subprocess.Popen[str]", model: Path, folder: Path) -> None:
        self._process, self._model, self._folder = process, model, folder
        self._runs = 0

    def run(self, target: Target, load: Load) -> dict[str, Any]:
        """One run; its result as the command wrote it.

        Raises:
            RunFailed: the command failed, or requests did.
        """
        self._runs += 1
        name = f"{self._runs}-{target.name}-{load.streams}.json".replace(" ", "-")
        arguments = [
            *("--backend", "openai", "--base-url", target.url, "--endpoint", "/v1/completions"),
            *("--model", str(self._model), "--served-model-name", "tiny", "--tokenizer", str(self._model)),
            *("--dataset-name", "random", "--random-input-len", str(PROMPT_TOKENS)),
            *("--random-output-len", str(load.tokens), "--num-prompts", str(load.requests)),
            *("--max-concurrency", str(load.streams), "--ignore-eos", "--disable-tqdm", "--seed", str(SEED)),
            *("--percentile-metrics", "ttft,tpot,e2el", "--save-result"),
            *("--result-dir", str(self._folder), "--result-filename", name),
        ]
        arguments += ["--header", target.header] if target.header else []
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(arguments) + "\n")
        self._process.stdin.flush()
        said = self._process.stdout.readline().strip()
        if said != "ok":
            raise RunFailed(f"vllm bench serve against {target.name}, {load.streams} streams: {said or 'it died'}")
        found: dict[str, Any] = json.loads((self._folder / name).read_text())
        if found["completed"] != load.requests:
            raise RunFailed(f"{target.name}, {load.streams} streams: {found['completed']} of {load.requests} answered")
        return found


@contextmanager
def generator(model: Path, folder: Path, log: TextIO) -> Iterator[Generator]:
    """A load generator that has imported what it needs."""
    command = [sys.executable, "-m", "benchmarks.overhead.bench_child"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        if process.stdout.readline().strip() != "ready":
            raise RunFailed("the load generator did not start; see its log")
        yield Generator(process, model, folder)
    finally:
        process.kill()
        process.wait()
