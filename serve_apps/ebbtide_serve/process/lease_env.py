"""How a lease reaches the process that will own the slot's memory.

vLLM's engine process is started by vLLM, not by us: the environment is the one thing that it surely inherits. The
replica writes it before the engine starts; our worker class and our vLLM plugin read it inside the engine process.

Not guaranteed: secrecy. Whoever may read the process's environment sees it, so it carries no token.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from ebbtide.client.messages import Lease, SlotRef
from ebbtide.system.runtime_dir import IPC

LEASE_VARIABLE = "EBBTIDE_LEASE"
ACTOR_VARIABLE = "EBBTIDE_ACTOR"  # "<pid>:<start time in clock ticks since boot>" of the replica's process


@dataclass(frozen=True, slots=True)
class EngineLease:
    """A lease with what the slot lock needs besides. Slot ``i`` belongs to the worker of local rank ``i``."""

    lease: Lease
    lock_dir: Path
    log_dir: Path | None
    ledger: str = ""  # the identity of the ledger that gave the lease

    def to_json(self) -> str:
        """The form in the environment."""
        log_dir = None if self.log_dir is None else str(self.log_dir)
        places = {"lock_dir": str(self.lock_dir), "log_dir": log_dir, "ledger": self.ledger}
        return json.dumps({"lease": asdict(self.lease), **places})


def lease_from_environment(environ: Mapping[str, str]) -> EngineLease | None:
    """The lease that this process was started under; None if it was started under none.

    Raises:
        ValueError: the variable is set but does not say a lease.
    """
    text = environ.get(LEASE_VARIABLE, "")
    if not text:
        return None
    try:
        raw = json.loads(text)
        lease = raw["lease"]
        slots = tuple(SlotRef(s["node"], int(s["index"]), s["uuid"]) for s in lease["slots"])
        log_dir = None if raw["log_dir"] is None else Path(raw["log_dir"])
        granted = Lease(lease["workload"], int(lease["epoch"]), slots)
        return EngineLease(granted, Path(raw["lock_dir"]), log_dir, str(raw.get("ledger", "")))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{LEASE_VARIABLE} does not hold a lease ({error!r}): {text[:200]}") from error


def actor_from_environment(environ: Mapping[str, str]) -> tuple[int, int] | None:
    """Pid and start time of the replica that this process belongs to; None outside of a replica's engine."""
    pid, _, started = environ.get(ACTOR_VARIABLE, "").partition(":")
    return (int(pid), int(started)) if pid and started else None


def vllm_environment(cache_dir: Path, *, on_gpu: bool, threads: int | None = None) -> dict[str, str]:
    """The variables that vLLM must find before it is imported.

    ``threads``: that an engine without a GPU computes with; None: as many as Ray gave its actor CPUs.

    ``cache_dir`` keeps the results of inspecting model classes (9.6 s without, 1.5 s with, on 2 cores) and compiled
    code; all replicas of a node share it, unless each is given a directory of its own (``compile_cache``).
    """
    variables = {
        "HF_HUB_OFFLINE": "1",  # models are directories; nothing is ever fetched in the middle of a start
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CACHE_ROOT": str(cache_dir),
    }
    if not on_gpu:
        variables |= {
            # Engine and worker in one child process instead of two; the CPU platform turns "uni" into "mp" without it.
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            # vLLM 0.29 saves ahead-of-time compiled code on CPUs and then cannot load it ("no attribute
            # 'finalize_loading'"): with it a start from warm caches compiles anew, without it in a third of the time.
            "VLLM_USE_AOT_COMPILE": "0",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(threads) if threads else os.environ.get("OMP_NUM_THREADS", "1"),
        }
    return variables


def vllm_sockets(runtime_dir: Path) -> dict[str, str]:
    """The variable that has vLLM make its sockets in the pool's folder, which is made if it is not there.

    In TMPDIR, which is vLLM's own choice, their paths may be too long, and those of killed engines stay forever.
    """
    folder = runtime_dir / IPC
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return {"VLLM_RPC_BASE_PATH": str(folder)}
