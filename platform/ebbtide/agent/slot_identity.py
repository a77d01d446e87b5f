"""What a slot is called for ever, whatever Ray calls its node today: the name of its lock.

A GPU has NVML's uuid. A logical GPU has none, so it is named after its machine and its index: several raylets on one
machine must have several machine names (the Ray node label ``ebbtide.io/machine``), or they would share their logical
GPUs' locks; and a raylet that comes back as another Ray node meets the locks of the one before.
"""

import socket
from collections.abc import Callable, Mapping

MACHINE_LABEL = "ebbtide.io/machine"


def machine_name(labels: Mapping[str, str]) -> str:
    """The machine of a Ray node with these labels: the label, or else this host's name."""
    return labels.get(MACHINE_LABEL) or socket.gethostname()


def slot_uuids(machine: str, gpu_uuid: Callable[[int], str]) -> Callable[[int], str]:
    """The uuid by index: the GPU's own where there is one, else ``"<machine>-<index>"``."""
    safe = machine.replace("/", "_")  # it names a file
    return lambda index: gpu_uuid(index) or f"{safe}-{index}"
