"""What the gateway is told: addresses, endpoints, limits, keys.

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


@dataclass(frozen=True, slots=True)
class ApiKey:
    """One key. The secret itself is nowhere: ``sha256`` is the hex digest of it (>= 128 random bits, so no salt).

    ``endpoints`` None means all. A limit that is None is no limit. ``concurrent_streams`` counts requests in flight,
    streamed or not, held ones included.
    """

    name: str
    sha256: str
    scopes: tuple[str, ...] = (SCOPE_MODELS, SCOPE_GENERATE)
    endpoints: tuple[str, ...] | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent_streams: int | None = None
    revoked: bool = False

    def __post_init__(self) -> None:
        if len(self.sha256) != 64 or set(self.sha256.lower()) - set("0123456789abcdef"):
            raise ValueError(f"key {self.name!r}: sha256 must be 64 hex digits")


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Everything that the gateway needs to know before it meets the arbiter.

    Raises:
        ValueError: a public address without keys, or a limit that lets nothing through.
    """

    endpoints: tuple[str, ...]  # names of models, as clients write them
    internal_token: str = field(repr=False)  # proves to a replica that a request comes from a gateway
    host: str = "127.0.0.1"
    port: int = 8000
    node: str = ""  # where it runs, for the report
    keys: tuple[ApiKey, ...] = ()
    # Held requests, all endpoints together: a burst, not a backlog, and never a danger to the node's memory.
    hold_max_requests: int = 256
    hold_max_bytes: int = 64 << 20
    hold_max_age_s: float = 120.0  # a cold start takes 20-60 s (facts), and one failed start may come before it
    max_inflight_per_seat: int = 64
    max_body_bytes: int = 8 << 20  # a prompt of 1M tokens is about 4 MiB of text
    max_header_bytes: int = 32 << 10
    header_timeout_s: float = 10.0  # from the first byte of a request, or the connection, to the end of the headers
    body_timeout_s: float = 30.0
    connect_timeout_s: float = 2.0  # to a replica, in the same cluster
    request_timeout_s: float = 600.0  # from arrival to the last byte, held or not
    retry_after_s: float = 5.0  # told to those whom the hold does not take
    drain_s: float = 30.0  # how long running requests may go on when the gateway stops

    def __post_init__(self) -> None:
        if not self.keys and not _is_loopback(self.host):
            raise ValueError(
                f"gateway host {self.host!r} is reachable from outside and no API key is configured: "
                "configure keys, or bind 127.0.0.1"
            )
        for name in ("hold_max_requests", "hold_max_bytes", "max_inflight_per_seat", "max_body_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not self.internal_token:
            raise ValueError("internal_token is empty: replicas could not tell the gateway from a stranger")


def settings_to_json(settings: GatewaySettings) -> dict[str, Any]:
    """As JSON types, without the internal token."""
    fields = asdict(settings)
    del fields["internal_token"]
    return fields


def settings_from_json(raw: Mapping[str, Any], internal_token: str) -> GatewaySettings:
    """The reverse of :func:`settings_to_json`; lists and tuples are the same to it.

    Raises:
        ValueError, TypeError: not what :func:`settings_to_json` writes.
    """
    fields = dict(raw)
    fields["endpoints"] = tuple(fields.get("endpoints", ()))
    fields["keys"] = tuple(_key_from_json(key) for key in fields.get("keys", ()))
    return GatewaySettings(internal_token=internal_token, **fields)


def _key_from_json(raw: Mapping[str, Any]) -> ApiKey:
    fields = dict(raw)
    for name in ("scopes", "endpoints"):
        if fields.get(name) is not None:
            fields[name] = tuple(fields[name])
    return ApiKey(**fields)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
