"""What the gateway is told when it starts: addresses, endpoints, limits. Keys and routes come with orders.

Plain frozen values, mapped from the config file by whoever deploys the gateway. They travel as JSON, because Serve's
``user_config``, by which a running gateway is told of changes, is JSON. Serve shows that to whoever reads its status,
so the internal token travels apart.
"""

import ipaddress
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

SCOPE_MODELS = "models"  # GET /v1/models
SCOPE_GENERATE = "generate"  # POST /v1/chat/completions, /v1/completions
SCOPE_ADMIN = "admin"  # GET /metrics


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Everything that the gateway needs to know before it meets the arbiter.

    Raises:
        ValueError: a limit that lets nothing through, or half a certificate.
    """

    endpoints: tuple[str, ...]  # names of models, as clients write them
    internal_token: str = field(repr=False)  # proves to a replica that a request comes from a gateway
    host: str = "127.0.0.1"
    port: int = 8000
    node: str = ""  # where it runs, for the report
    per_node: bool = False  # one gateway on each node, all on the same port
    tls_cert: str = ""  # PEM files; "": plain HTTP
    tls_key: str = ""
    # Memory and descriptors are bounded by it. Each needs one descriptor more for its replica while it is served.
    max_connections: int = 20_000
    # Held requests, all endpoints together: a burst, not a backlog, and never a danger to the node's memory.
    hold_max_requests: int = 256
    hold_max_bytes: int = 64 << 20
    hold_max_age_s: float = 120.0  # a cold start takes 20-60 s (facts), and one failed start may come before it
    max_inflight_per_seat: int = 64
    max_body_bytes: int = 8 << 20  # a prompt of 1M tokens is about 4 MiB of text
    max_header_bytes: int = 32 << 10  # of the request line and all headers; a browser's cookies fit into 16 KiB
    max_headers: int = 100  # as nginx and Apache
    header_timeout_s: float = 10.0  # from the first byte of a request, or the connection, to the end of the headers
    idle_timeout_s: float = 30.0  # between two requests of a connection
    body_timeout_s: float = 30.0
    # A client that reads nothing for so long is cut off: until then it keeps a replica busy for nobody.
    client_stall_s: float = 30.0
    connect_timeout_s: float = 2.0  # to a replica, in the same cluster
    # Without a byte of a stream for so long a replica counts as hung. A long prompt behind a full batch takes a minute.
    replica_silence_s: float = 180.0
    request_timeout_s: float = 600.0  # from arrival to the last byte, held or not
    retry_after_s: float = 5.0  # told to those whom the hold does not take
    drain_s: float = 30.0  # how long running requests may go on when the gateway stops

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the gateway."""
        return _is_loopback(self.host)

    @property
    def scheme(self) -> str:
        """Of its address."""
        return "https" if self.tls_cert else "http"

    def __post_init__(self) -> None:
        if bool(self.tls_cert) != bool(self.tls_key):  # guard: half a certificate is refused
            raise ValueError("TLS needs both tls_cert and tls_key")
        for name in ("hold_max_requests", "hold_max_bytes", "max_inflight_per_seat", "max_body_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not self.internal_token:  # guard: there is no gateway without an internal token
            raise ValueError("internal_token is empty: replicas could not tell the gateway from a stranger")


def settings_to_json(settings: GatewaySettings) -> dict[str, Any]:
    """As JSON types, without the internal token."""
    fields = asdict(settings)
    del fields["internal_token"]  # guard: the internal token is in no JSON
    return fields


def settings_from_json(raw: Mapping[str, Any], internal_token: str) -> GatewaySettings:
    """The reverse of :func:`settings_to_json`; lists and tuples are the same to it.

    Raises:
        ValueError, TypeError: not what :func:`settings_to_json` writes.
    """
    fields = dict(raw)
    fields["endpoints"] = tuple(fields.get("endpoints", ()))
    return GatewaySettings(internal_token=internal_token, **fields)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # guard: a gateway's host name is not taken for loopback
