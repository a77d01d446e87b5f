"""Taking a pool down: its jobs step aside, then seats, gateway, fences and actors of ours go; and the cluster, if `up`
started it.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

import ray
from ray.exceptions import RayError

from ebbtide.agent.node_agent import agent_name
from ebbtide.client.arbiter_link import ARBITER_NAME, NAMESPACE, ArbiterLink
from ebbtide.client.cluster_join import ClusterUnreachable, join
from ebbtide.client.cluster_record import ClusterRecord, forget_cluster
from ebbtide_autoscaler.cluster import local_cluster
from ebbtide_autoscaler.lifecycle.cluster_recovery import end_left_behind
from ebbtide_autoscaler.lifecycle.ownership import release_directory, unmark_cluster

STOP_S = 60.0


def down(record: ClusterRecord, *, say: Callable[[str], None], drain: Callable[[], Iterable[str]] = lambda: ()) -> None:
    """Take the pool down; a cluster that `up` started is stopped too.

    Args:
        record: of the pool.
        say: progress.
        drain: called before anything is taken away, with the cluster joined; gives lines that are said at the end.

    Raises:
        StillUp: by ``drain``; the pool is up.
    """
    then: tuple[str, ...] = ()
    try:
        join(record)
        then = tuple(drain())
        _leave(say)
    except (ClusterUnreachable, RayError) as error:
        say(f"not left in order, the cluster is stopped all the same: {error}")
    ray.shutdown()
    if record.pids:
        local_cluster.stop(record)
        end_left_behind(record)
        say("Ray cluster stopped")
    _let_go(record, say)
    forget_cluster(record.pool)
    for line in then:
        say(line)


def _leave(say: Callable[[str], None]) -> None:
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    link = ArbiterLink()
    if link.call("hello", timeout_s=5.0) is not None:
        link.call("stop", timeout_s=STOP_S)
        say("seats and gateway removed, fences dropped")
    for name in (ARBITER_NAME, *(agent_name(node) for node in nodes)):
        try:
            ray.kill(ray.get_actor(name, namespace=NAMESPACE), no_restart=True)
        except ValueError:
            continue  # not there
    unmark_cluster()


def _let_go(record: ClusterRecord, say: Callable[[str], None]) -> None:
    """The directory is free for the next `up`; its ledger still says whose it is."""
    shared = Path(record.shared_dir)
    try:
        release_directory(shared, record.claim)
    except (OSError, ValueError) as error:
        say(f"the mark on {shared} was left there: {error}")
