"""Tiers, bytes and seconds as the reasons of a choice write them. Pure."""

from collections.abc import Mapping

from ebbtide.snapshot.tiers.cost_model import Tier

IN_WORDS: Mapping[Tier, str] = {
    Tier.EVICT_AND_CUDA: "park in place",
    Tier.CUDA_CHECKPOINT: "CUDA checkpoint",
    Tier.EVICT_AND_SPILL: "evict and spill",
    Tier.STOP_AND_RESTART: "stop and restart",
    Tier.CRIU_IMAGE: "CRIU image",
    Tier.KILL: "kill at the deadline",
}


def gigabytes(size_bytes: float) -> str:
    """10^9 bytes, as people compare them with GB/s; three digits."""
    if size_bytes < 1e6:
        return f"{size_bytes / 1e3:.3g} kB"
    return f"{size_bytes / 1e6:.3g} MB" if size_bytes < 1e9 else f"{size_bytes / 1e9:.3g} GB"


def rate(bytes_per_s: float) -> str:
    """GB/s, with as many digits as matter."""
    return f"{bytes_per_s / 1e9:.2g} GB/s"


def seconds(duration_s: float) -> str:
    """Seconds below two minutes, else minutes; what is shorter than a millisecond is said to be so."""
    if duration_s < 1e-3:
        return "< 1 ms"
    if duration_s < 0.095:
        return f"{duration_s * 1e3:.2g} ms"
    return f"{duration_s:.2g} s" if duration_s < 9.95 else _long(duration_s)


def _long(duration_s: float) -> str:
    return f"{duration_s:.0f} s" if duration_s < 120 else f"{duration_s / 60:.0f} min"
