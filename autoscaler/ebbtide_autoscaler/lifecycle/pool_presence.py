"""How a pool of a name stands, as far as this user's record tells: up, silent, vacant, gone or never brought up."""

from dataclasses import dataclass
from typing import Literal

from ebbtide.client.arbiter_link import ArbiterLink
from ebbtide.client.cluster_join import ClusterUnreachable, join
from ebbtide.client.cluster_record import ClusterRecord, NoPool, load_cluster

HELLO_S = 10.0  # an arbiter that Ray starts again answers after 1.5-2.3 s, on a busy machine after 4.6 s


@dataclass(frozen=True, slots=True)
class PoolPresence:
    """``state``: none = no record; gone = its cluster does not answer; vacant = the cluster answers and has no
    arbiter, so it is another cluster at the same address, or somebody ended the arbiter; silent = the arbiter exists
    and does not answer; up = it answers. With the last three this process has joined the cluster.
    """

    state: Literal["none", "gone", "vacant", "silent", "up"]
    record: ClusterRecord | None = None
    why: str = ""


def look_for(pool: str) -> PoolPresence:
    """How the pool stands now; takes ``HELLO_S`` at most once its cluster answers."""
    try:
        record = load_cluster(pool)
    except NoPool:
        return PoolPresence("none")
    try:
        join(record)
    except ClusterUnreachable as error:
        return PoolPresence("gone", record, str(error))
    link = ArbiterLink()
    if link.call("hello", timeout_s=HELLO_S) is not None:
        return PoolPresence("up", record)
    if link.handle() is None:
        return PoolPresence("vacant", record, f"the Ray cluster at {record.address} has no arbiter")
    return PoolPresence("silent", record, f"the arbiter at {record.address} has not answered within {HELLO_S:g} s")
