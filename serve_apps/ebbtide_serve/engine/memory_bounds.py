"""What a vLLM engine on a CPU plans its memory with, where the pool's file does not say. Pure.

vLLM's CPU worker otherwise takes 0.92 of the machine's memory for itself and refuses to start where less is free
(0.29, v1/worker/cpu_worker.py); two replicas on one machine would never fit.
"""

from collections.abc import Mapping

GIB = 1 << 30
SAID = ("kv_cache_memory_bytes", "gpu_memory_utilization", "num_gpu_blocks_override")
KV_SHARE = 4  # of a slot's memory, the fourth part; the rest is for the interpreter (1.5 GiB), weights, activations
KV_MAX = 4 * GIB  # vLLM's own default on CPUs before it took a share of all (VLLM_CPU_KVCACHE_SPACE)
SLOT_BYTES = 3 * GIB  # where no `up` has counted: what it counts at least
FIT = -1  # vLLM: the longest context that the KV cache holds


def cpu_memory_defaults(args: Mapping[str, object], slot_bytes: int | None) -> dict[str, object]:
    """Engine arguments that bound the KV cache, and the context with it.

    Args:
        args: of the endpoint's ``engine``; one that bounds memory itself is left alone.
        slot_bytes: memory of one logical slot; None: not known.
    """
    if any(name in args for name in SAID):
        return {}
    kv_bytes = min(KV_MAX, (SLOT_BYTES if slot_bytes is None else slot_bytes) // KV_SHARE)
    return {"kv_cache_memory_bytes": kv_bytes, "max_model_len": FIT}
