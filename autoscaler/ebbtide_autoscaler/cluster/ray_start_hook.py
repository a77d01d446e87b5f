"""What `ray start` does otherwise in a cluster of ours: Ray loads this by the variable RAY_START_HOOK.

Ray's client server (``ray://``) has no option that leaves it out. Nothing of ours uses it and no address of it is told
to anybody, while it costs 90 MiB and a port, and has no mark of its cluster on its command line.
"""

import os
from typing import Any

VARIABLE = "RAY_START_HOOK"
PLACE = f"{__name__}.leave_out_client_server"


def leave_out_client_server(ray_params: Any, _head: bool) -> None:
    """No client server for this node; and this hook for no `ray start` of those that its processes may call."""
    os.environ.pop(VARIABLE, None)
    ray_params.ray_client_server_port = None
