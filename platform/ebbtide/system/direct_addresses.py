"""Which addresses are ours, so that a proxy in the environment (HTTP_PROXY, grpc_proxy) is not asked for them.

A company's proxy is for the world outside, as a model hub; of a pool's own services it knows nothing. All clients that
take a proxy from the environment (requests, urllib, httpx, curl, gRPC) take exceptions from NO_PROXY as well. So ours
are added there, and what stands there stays.

Host names are added only where an address has one: requests matches by the end of a name, so that a machine named `co`
would be an exception for half of the world.
"""

import ipaddress
import os
import socket
from collections.abc import Iterable, Mapping
from functools import cache
from urllib.parse import urlsplit

import psutil

NO_PROXY = ("NO_PROXY", "no_proxy")  # requests, urllib and curl prefer the second one, Go programs the first
NO_GRPC_PROXY = "no_grpc_proxy"  # gRPC takes it instead of the others, where it is set


def without_proxy(environ: Mapping[str, str], addresses: Iterable[str] = ()) -> dict[str, str]:
    """The variables of ``environ`` that name exceptions, with this machine's addresses and the hosts of ``addresses``.

    Args:
        environ: with or without such variables; what they name is kept, in its order, and is in all of them then.
        addresses: host:port, URLs or hosts; others, such as "auto", add nothing.
    """
    given = [part.strip() for name in NO_PROXY for part in environ.get(name, "").split(",")]
    named = [host for host in map(host_of, addresses) if host]
    exceptions = ",".join(dict.fromkeys([*filter(None, given), *_own_addresses(), *named]))
    found = dict.fromkeys(NO_PROXY, exceptions)
    if environ.get(NO_GRPC_PROXY):
        found[NO_GRPC_PROXY] = ",".join(dict.fromkeys([*environ[NO_GRPC_PROXY].split(","), *exceptions.split(",")]))
    return found


def reach_directly(*addresses: str) -> None:
    """This process, and what it starts from now on, asks no proxy for this machine and the hosts of ``addresses``."""
    os.environ.update(without_proxy(os.environ, addresses))


def host_of(address: str) -> str:
    """The host of ``host:port``, ``[v6]:port``, a URL or a bare host; "" for one that stands for all or for none."""
    try:
        host = urlsplit(address if "://" in address else f"//{address}").hostname or ""
    except ValueError:
        return ""
    return "" if host in ("auto", "local", "0.0.0.0", "::") else host


@cache
def _own_addresses() -> tuple[str, ...]:
    """Ray names its services by 127.0.0.1 or by the machine's address, whatever it was told."""
    found = ["localhost", "127.0.0.1", "::1"]
    for one in (one for card in psutil.net_if_addrs().values() for one in card):
        if one.family in (socket.AF_INET, socket.AF_INET6):
            found.append(str(ipaddress.ip_address(one.address.partition("%")[0])))
    return tuple(dict.fromkeys(found))
