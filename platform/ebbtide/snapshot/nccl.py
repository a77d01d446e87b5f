"""What NCCL must be told so that a gang on GPUs can be frozen, and so that its sums come out the same. Pure.

NCCL reads its settings from the environment when a process makes its first communicator, and never again.

- *NVLS* keeps memory behind multicast objects, which no driver can freeze: the checkpoint hangs, or the process is
  harmed for good, also if every communicator was destroyed before. So it must be off for as long as the process lives.
- *Algorithm and protocol* decide in which order the ranks are summed. NCCL picks them for each size by a model of the
  machine; losses are equal bit for bit only where it picks the same. Ring and Simple are there for every collective.

Not guaranteed: that a ring has the same order on other GPUs than before. None of this was run on a GPU.

Source: NCCL user guide, "Environment Variables"; NVIDIA/nccl issues 2117 and 2337 (NVLS).
"""

from collections.abc import Mapping

NVLS = "NCCL_NVLS_ENABLE"
OFF = "0"
DEFAULTS: Mapping[str, str] = {NVLS: OFF, "NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}
"""Of every gang on GPUs that may park, or shall give the same losses again. What its author has set stays."""


def nccl_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """What an environment says of the settings that matter; one that is not there is NCCL's own choice."""
    return {name: environ[name] for name in DEFAULTS if name in environ}


def multicast(environ: Mapping[str, str]) -> str:
    """Why a driver could not freeze a process that uses NCCL under this environment; empty if nothing is found."""
    value = environ.get(NVLS, "")
    if value == OFF:
        return ""
    said = f"{NVLS}={value}" if value else f"{NVLS} is not set"
    return f"NCCL may use NVLS ({said}), which no driver can freeze: it hangs, or harms the process for good"
