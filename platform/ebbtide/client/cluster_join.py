"""Joining the pool's Ray cluster as a driver, with a deadline and an error that says what to do.

Ray is imported when one joins: it takes half a second, for which help and completion of a command would wait.
"""

import signal
import socket
import threading

from ebbtide.client.arbiter_link import NAMESPACE
from ebbtide.client.cluster_record import ClusterRecord
from ebbtide.client.ray_auth import adopt
from ebbtide.system.direct_addresses import reach_directly

CONNECT_S = 3.0  # the GCS answers a connect within milliseconds, or is not there


class ClusterUnreachable(ConnectionError):
    """Nobody answers at the cluster's address, or somebody who does not know us."""


def join(record: ClusterRecord) -> None:
    """Connect this process to the cluster; does nothing if it is connected.

    Raises:
        ClusterUnreachable: the address is dead or foreign.
    """
    import ray  # noqa: PLC0415 - see the first lines of this module
    from ray.exceptions import RayError  # noqa: PLC0415

    if ray.is_initialized():
        return
    require_listener(record.address)
    reach_directly(record.address, record.dashboard_url, record.gateway_url)
    adopt(record.env)
    ends = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=record.address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    except (RayError, ConnectionError, RuntimeError, ValueError, TimeoutError, OSError) as error:
        raise ClusterUnreachable(f"the Ray cluster at {record.address} refused us: {error}") from error
    finally:
        # Ray's own would end a command with 15, and an `up` half way; and the one that its core puts in place of the
        # default prints the C++ stack of a command that is ended. None: it was set by no Python.
        if ends is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, ends)


def require_listener(address: str) -> None:
    """Fail at once, instead of after Ray's own minute, when nobody listens at ``address``.

    Raises:
        ClusterUnreachable: nobody does, or the address is no host:port.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ClusterUnreachable(f"{address!r} is no Ray address: expected host:port of the GCS")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
    except OSError as error:
        why = error.strerror or error
        raise ClusterUnreachable(f"nobody answers at {address} ({why}); is there a Ray cluster?") from error
