"""Asking another node of the cluster about a process there."""

import ray
from ray.exceptions import GetTimeoutError, RayError

from ebbtide.agent.node_agent import agent_name
from ebbtide.client.arbiter_link import NAMESPACE
from ebbtide_train.output_tail import tail

_ASK_S = 1.0
_START_S = 5.0  # a task on another node may have to start a process there: 1-2 s


def lives_there(node: str, pid: int, started: int) -> bool | None:
    """Whether that process of that node still runs, by the node's agent; None: nobody there can say.

    A node that Ray calls dead has no process that could do us harm: whoever comes there next asks its slot locks.
    """
    if not any(entry["NodeID"] == node and entry["Alive"] for entry in ray.nodes()):
        return False
    try:
        agent = ray.get_actor(agent_name(node), namespace=NAMESPACE)
        return bool(ray.get(agent.alive.remote(pid, started), timeout=_ASK_S))
    except (ValueError, AttributeError, GetTimeoutError, RayError):
        return None


def tail_there(node: str, paths: tuple[str, ...], *, chars: int) -> str:
    """The last lines of files on that node; empty if nobody there answers in time."""
    there = ray.remote(num_cpus=0, max_retries=0, label_selector={"ray.io/node-id": node})(tail)
    try:
        return str(ray.get(there.remote(paths, chars=chars), timeout=_START_S))
    except (GetTimeoutError, RayError):
        return ""
