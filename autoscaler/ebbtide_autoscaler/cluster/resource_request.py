"""How Ray's cluster autoscaler is told of a wish: by ``ray.autoscaler.sdk.request_resources``.

A request is a list of bundles that the cluster must be able to hold by its nodes' whole resources, used or not. It has
one bundle for each node that shall be there, as large as the node:

- a node that is there and stays is asked for by its id, so that no other one can answer for it. Without that Ray may
  put a bundle on the very node that was emptied to go, and would keep it for that (seen in its sources: among nodes
  of the same size it takes the first);
- a node that is not there yet is asked for by the label that the pool's node types have.

Whoever calls last replaces the whole request, for the whole cluster; Ray Data and stock Ray Train call it too. So it is
sent again from time to time.
"""

from collections.abc import Mapping

from ray.autoscaler.sdk import request_resources
from ray.autoscaler.v2.utils import is_autoscaler_v2

from ebbtide.pool.ids import NodeId
from ebbtide.pool.rules.drain import unneeded_nodes
from ebbtide.pool.state import PoolState
from ebbtide_autoscaler.cluster.node_names import ELASTIC_LABEL
from ebbtide_autoscaler.cluster.size import DesiredSize

NODE_LABEL = "ray.io/node-id"

Request = tuple[tuple[int, Mapping[str, str]], ...]
"""GPUs and the labels that they must come with, node by node."""


def request_of(wish: DesiredSize, state: PoolState, elastic: Mapping[NodeId, int], node_slots: int) -> Request:
    """What to ask for.

    Args:
        wish: what the pool should be.
        state: the pool.
        elastic: living nodes that Ray's autoscaler has started, with their GPUs. Others are none of its business.
        node_slots: GPUs of a node that it starts.
    """
    leaving = {*wish.going, *unneeded_nodes(state)} - {*wish.back}
    stays = [node for node in elastic if node in state.nodes and node not in leaving]
    named = [(elastic[node], {NODE_LABEL: str(node)}) for node in sorted(stays)]
    return (*named, *[(node_slots, {ELASTIC_LABEL: "true"})] * wish.new)


def send(request: Request) -> None:
    """Tell Ray; blocks while its GCS is away.

    Raises:
        RuntimeError: the cluster has no autoscaler that could obey.
    """
    if request and not is_autoscaler_v2():
        raise RuntimeError(
            "the cluster runs without Ray's autoscaler v2: start its head with RAY_enable_autoscaler_v2=1"
        )
    request_resources(
        bundles=[{"GPU": gpus} for gpus, _ in request], bundle_label_selectors=[dict(labels) for _, labels in request]
    )
