"""What this machine has, read once before a cluster is started on it."""

import os

from ray._private.accelerators import get_accelerator_manager_for_resource  # what Ray itself will count (2.60)

from ebbtide.agent.host_memory.available_memory import available_bytes
from ebbtide_autoscaler.cluster.node_size import Machine


def read_machine() -> Machine:
    """GPUs as a Ray node started by this process counts them; cores that this process may use."""
    found = get_accelerator_manager_for_resource("GPU")
    gpus = found.get_current_node_num_accelerators() if found is not None else 0
    visible = found.get_current_process_visible_accelerator_ids() if found is not None else None
    cores = len(os.sched_getaffinity(0))
    return Machine(gpus if visible is None else min(gpus, len(visible)), cores, available_bytes())
