"""``python -m benchmarks.gpu.line.play SPEC``: the process that plays; its parent ends it, and reads its journal."""

import faulthandler
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.line.journal import Journal
from benchmarks.gpu.line.logs import tails
from benchmarks.gpu.line.phases import Line
from benchmarks.gpu.line.pool import Pool
from benchmarks.gpu.line.script import Budget, play_all
from benchmarks.gpu.line.setting import Setting, host_bytes
from benchmarks.gpu.line.watch import Watch

# Of vLLM, Ray and tokenizers: no network, no FlashInfer (its kernels are not carried to a bare machine), whole logs.
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_HOST_IP": "127.0.0.1",  # on a machine without a network it finds no address of its own
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_memory_monitor_refresh_ms": "0",  # a virtual machine whose memory grows as it is used looks full to Ray
    "RAY_DEDUP_LOGS": "0",
    "PYTHONUNBUFFERED": "1",
    "PYTHONFAULTHANDLER": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


@dataclass(frozen=True, slots=True)
class Spec:
    """What the parent tells; as JSON.

    Attributes:
        until_s: seconds since 1970: then the parent ends it.
        phases: the names of those that are wanted.
        model: a directory; empty: one is made.
    """

    work: str
    cpu: bool
    until_s: float
    phases: tuple[str, ...]
    model: str = ""

    @classmethod
    def read(cls, text: str) -> "Spec":
        """From JSON."""
        fields = json.loads(text)
        return cls(**{**fields, "phases": tuple(fields["phases"])})

    def setting(self) -> Setting:
        """The setting that it means."""
        model = Path(self.model) if self.model else None
        if self.cpu:
            return Setting(Path(self.work), self.cpu, model)
        ram_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        room = host_bytes(shutil.disk_usage("/dev/shm").free, ram_bytes)
        return Setting(Path(self.work), self.cpu, model, room, shutil.disk_usage(self.work).free)


def environment(work: Path) -> Mapping[str, str]:
    """What the processes of the line have in theirs, beside what this one has."""
    return {**ENVIRONMENT, "EBBTIDE_HOME": str(work / "home")}


def main() -> None:
    """Play."""
    faulthandler.enable()
    spec = Spec.read(Path(sys.argv[1]).read_text())
    setting = spec.setting()
    os.environ.update(environment(setting.work))
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # Ray and our agent number the GPUs as NVML does only without it
    began_s = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began_s:6.1f}] {text}", flush=True)

    journal = Journal(setting.work / "journal.jsonl")
    watch = Watch(journal)
    watch.start()
    budget = Budget(spec.until_s)
    pool = Pool(setting, budget.left_s, say)
    line = Line(setting, pool, watch, journal)
    play_all(
        line.phases(),
        journal,
        wanted=spec.phases,
        budget=budget,
        tails=lambda: tails(pool.folders()),
        say=say,
    )
    watch.stop()


if __name__ == "__main__":
    main()
