"""The public HTTP face of the pool and what it holds back while a replica starts.

That a bind other than loopback has keys is checked where both are known: ``cross_checks``.
"""

from ipaddress import ip_address
from typing import Annotated

from pydantic import Field

from ebbtide.config.sections.scalars import Count, RelativePath, Seconds, SizeBytes
from ebbtide.config.sections.section import Section


class HoldSection(Section):
    """Bounds on the requests that wait while no replica can take them; beyond them the answer is 429."""

    max_requests: Count = Field(
        256, description="Requests held at once, all endpoints together. Default 256: a burst, not a backlog."
    )
    max_bytes: SizeBytes = Field(
        64 * 2**20,
        description='Bytes of request bodies held at once, or "64 MiB". '
        "Default 64 MiB: never a danger to the node's memory.",
    )
    max_age_s: Seconds = Field(
        120, description="Seconds that one request may be held. Default 120: a cold start of a large model."
    )


class TlsSection(Section):
    """A certificate, read again whenever its files change."""

    cert: RelativePath = Field(description="PEM file of the certificate and its chain. Relative to this file.")
    key: RelativePath = Field(description="PEM file of its key, without a passphrase, mode 0600.")


class GatewaySection(Section):
    """Where the gateway listens and what it accepts."""

    host: Annotated[str, Field(min_length=1)] = Field(
        "127.0.0.1",
        description="Address to listen on. Default loopback: only this machine; any other needs at least one key.",
    )
    port: Annotated[int, Field(ge=1, le=65535)] = Field(
        8000, description="TCP port. Default 8000: what OpenAI-style servers use."
    )
    tls: TlsSection | None = Field(
        None, description="Speak HTTPS (TLS 1.2 or later) with this certificate. Default null: plain HTTP."
    )
    per_node: bool = Field(
        False,
        description="One gateway on each node, all on the same port. Default false: one, where Ray Serve places it.",
    )
    max_connections: Count = Field(
        20_000,
        description="Connections open at once to one gateway; one more is told 503. Default 20000: about 260 MB of "
        "memory when all are idle, 13 kB each, beside the 85 MB of a gateway with none; a process that may have fewer "
        "than two file descriptors for each takes fewer.",
    )
    hold: HoldSection = Field(HoldSection(), description="Bounds on requests that wait for a replica.")
    max_body_bytes: SizeBytes = Field(
        8 * 2**20,
        description='Largest request body in bytes, or "8 MiB". Default 8 MiB: far above a full context of text.',
    )
    request_timeout_s: Seconds = Field(
        600,
        description="Seconds from arrival to last byte of one request. Default 600: the openai client's own limit.",
    )

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the gateway."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        # guard: a host name in the file is not taken for loopback
        except ValueError:  # a host name: whoever it resolves to, it is not known to be this machine alone
            return False
