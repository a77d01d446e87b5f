"""What is played, and where: sizes for a GPU or for a dry run on a CPU, folders, and the pool's file. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

POOL, ENDPOINT, JOB, LARGE_JOB = "gpu-line", "chat", "lm", "large"
GIB = 1 << 30
TRAIN = "ebbtide_train.examples.stdlib_lm:train"
FOR_EVER = 1_000_000  # steps: until it is cancelled
# Parameters of `examples.stdlib_lm`: 2 * vocabulary * width + layers * (4 * width^2 + 3 * width * hidden), four bytes
# each, and two moments of AdamW beside each: 12 bytes.
STATE_2_GB = {"vocab_size": 8192, "width": 1024, "heads": 16, "layers": 12, "hidden": 2816, "seq_len": 256}
STATE_20_GB = {"vocab_size": 8192, "width": 2048, "heads": 16, "layers": 32, "hidden": 5632, "seq_len": 256}
BYTES_PER_PARAMETER = 12
SMALL_HOST_BYTES, LARGE_HOST_BYTES = 4 * GIB, 30 * GIB  # their states, buffers, and half as much again
LARGE_DISK_BYTES = 44 * GIB  # what is parked is spilled; the spill before it goes only when this one is whole
MOST_HOST_BYTES = 40 * GIB
OF_SHM, OF_RAM = 0.75, 0.4  # Ray's object store has its part of both


@dataclass(frozen=True, slots=True)
class Setting:
    """Of one run.

    Attributes:
        work: folder for everything that it makes.
        cpu: a dry run: one logical GPU, the tiny model, a small job.
        model: a directory with a model; None: one is made, with random weights.
        host_bytes: of the node for the state of parked workers, which lies in /dev/shm.
        disk_bytes: that are free where ``work`` is.
        port: of the gateway.
    """

    work: Path
    cpu: bool
    model: Path | None = None
    host_bytes: int = 2 * GIB
    disk_bytes: int = 0
    port: int = 8137

    @property
    def shared(self) -> Path:
        """The pool's shared directory."""
        return self.work / "shared"

    @property
    def logs(self) -> Path:
        """What the line itself writes."""
        return self.work / "logs"

    @property
    def model_dir(self) -> Path:
        """What the endpoint serves."""
        return self.model or self.work / "model"

    @property
    def burst(self) -> int:
        """Requests of one burst."""
        return 8 if self.cpu else 30

    def pool_file(self, *, warm: bool = False) -> dict[str, Any]:
        """The pool with its endpoint and both jobs; with ``warm`` one warm replica is asked for."""
        return {
            "pool": {
                "name": POOL,
                "slots": 1 if self.cpu else "all",
                "num_cpus": 16,
                "shared_dir": str(self.shared),
                "host_memory_per_node": self.host_bytes,
            },
            "gateway": {"port": self.port, "hold": {"max_requests": 512, "max_age_s": 170}},
            # A replica must come back in place, not by a restart, however long its start takes here.
            "policy": {"restart_cost_s": 200, "park_first": True, "grow_after_s": 1, "start_timeout_s": 150},
            "endpoints": [self._endpoint(warm=warm)],
            "jobs": [self._job(JOB, STATE_2_GB, SMALL_HOST_BYTES), *self._large_job()],
        }

    def _endpoint(self, *, warm: bool) -> dict[str, Any]:
        engine: dict[str, Any] = {"enforce_eager": True, "dtype": "bfloat16"}
        if self.cpu:
            engine |= {"max_model_len": 1024, "max_num_seqs": 16, "max_num_batched_tokens": 1024}
            engine |= {"kv_cache_memory_bytes": 128 << 20}
        else:
            engine |= {"max_model_len": 2048, "max_num_seqs": 64, "max_num_batched_tokens": 4096}
            engine |= {"kv_cache_memory_bytes": 8 * GIB, "gpu_memory_utilization": 0.5}
        return {
            "name": ENDPOINT,
            "model": str(self.model_dir),
            "replicas": {"min": 0, "max": 1},
            "slo": {"ttft_s": 2.0, "tpot_s": 1.0},
            "target_requests": 32,
            "idle_after_s": 5,
            "down_after_s": 2,
            "min_uptime_factor": 0.1,
            "drain_s": 15,
            "engine": engine,
            **({"warm": {"replicas": 1}} if warm else {}),
        }

    @property
    def has_room_for_the_large_job(self) -> bool:
        """Whether its state can be parked and spilled here."""
        return self.cpu or (self.host_bytes >= LARGE_HOST_BYTES and self.disk_bytes >= LARGE_DISK_BYTES)

    def _large_job(self) -> list[dict[str, Any]]:
        return [self._job(LARGE_JOB, STATE_20_GB, LARGE_HOST_BYTES)] if self.has_room_for_the_large_job else []

    def _job(self, name: str, shape: Mapping[str, int], host_bytes: int) -> dict[str, Any]:
        args = {"steps": FOR_EVER, "cache_dir": str(self.work / "tokens"), **({} if self.cpu else shape)}
        return {
            "name": name,
            "entrypoint": TRAIN,
            "args": args,
            "workers": {"min": 1, "max": 1},
            "global_batch": 12 if self.cpu else 32,
            "micro_batch": 4 if self.cpu else 32,
            "min_runtime_s": 2,
            "grace_s": 60,
            "max_preemptions_per_h": 100,
            "checkpoint_every_s": 3600,  # one of 20 GB in the middle of a burst would be measured with it
            "host_memory_per_worker": 512 << 20 if self.cpu else min(host_bytes, self.host_bytes),
        }

    def write_pool_file(self, *, warm: bool = False) -> Path:
        """The pool's file, as YAML, of which JSON is a part."""
        path = self.work / f"pool{'-warm' if warm else ''}.yaml"
        path.write_text(json.dumps(self.pool_file(warm=warm), indent=1) + "\n")
        return path


def host_bytes(shm_free_bytes: int, ram_bytes: int) -> int:
    """How much host memory the pool may lend on a GPU machine."""
    return int(min(MOST_HOST_BYTES, OF_SHM * shm_free_bytes, OF_RAM * ram_bytes))


def state_bytes(shape: Mapping[str, int]) -> int:
    """Parameters and moments of a job with this shape."""
    width, hidden = shape["width"], shape["hidden"]
    parameters = 2 * shape["vocab_size"] * width + shape["layers"] * (4 * width * width + 3 * width * hidden)
    return BYTES_PER_PARAMETER * parameters
