"""Our entry in ``vllm.general_plugins``: vLLM calls it in every process that it starts, and in the replica itself.

It must be harmless where no replica is near (somebody's own ``vllm serve`` in the same environment) and when it is
called twice. It imports nothing of vLLM.
"""

import os

from ebbtide_serve.engine.fault_record import note_errors
from ebbtide_serve.process.parent_watch import arm_from_environment
from ebbtide_serve.vllm.registration import register_formats


def register() -> None:
    """End this process with its replica, if it belongs to one and is not the replica itself, and note for that replica
    what goes wrong here; name our load formats.
    """
    arm_from_environment(os.environ)
    note_errors(os.environ)
    register_formats()
