"""Finding the pool from inside a job's driver: its Ray cluster first, then its arbiter."""

import os
import time
from typing import Any

from ebbtide.client.arbiter_link import NAMESPACE, ArbiterLink
from ebbtide.client.cluster_join import ClusterUnreachable, require_listener
from ebbtide.client.cluster_record import NoPool, load_cluster
from ebbtide.client.ray_auth import adopt
from ebbtide_train.arbiter_client.link import Link
from ebbtide_train.errors import NoArbiter

ADDRESS_VARIABLE = "EBBTIDE_RAY_ADDRESS"
"""Set by ``ebbtide submit``: Ray's job supervisor overwrites RAY_ADDRESS by what it finds on the machine."""

ARBITER_S = 20.0  # a killed arbiter answers again after 1.5-2.3 s, on a busy machine after 4.6 s
HOW_TO_START = "start a pool with `ebbtide up FILE`, then run the job with `ebbtide submit FILE` or `ray job submit`"


def connect() -> ArbiterLink:
    """Join the pool's cluster if this process has not joined one, and give a link to its arbiter.

    Raises:
        NoArbiter: no cluster is known, or nobody answers there.
    """
    import ray  # noqa: PLC0415 - half a second, for which help and completion of `submit` would wait

    if not ray.is_initialized():
        address = os.environ.get(ADDRESS_VARIABLE) or os.environ.get("RAY_ADDRESS")
        try:
            if not address:
                record = load_cluster()
                adopt(record.env)
                address = record.address
            if address != "auto":
                require_listener(address)
            ray.init(address=address, namespace=NAMESPACE)
        except (NoPool, ClusterUnreachable, ConnectionError, RuntimeError, ValueError) as error:
            raise NoArbiter(f"cannot join the pool's cluster: {error}; {HOW_TO_START}") from error
    return ArbiterLink()


def ask(link: Link, method: str, *args: object, timeout_s: float = ARBITER_S) -> Any:
    """Ask the arbiter until it answers.

    Raises:
        NoArbiter: it did not within ``timeout_s``.
        ValueError: it refused.
    """
    deadline_s = time.monotonic() + timeout_s
    while (answer := link.call(method, *args)) is None:
        if time.monotonic() > deadline_s:
            raise NoArbiter(f"no arbiter answered within {timeout_s:g} s on this Ray cluster; {HOW_TO_START}")
        time.sleep(0.2)
    return answer
