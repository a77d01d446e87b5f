"""Where the arbiter shows its metrics. Gateways show theirs on their own port, under a key with the scope admin.

Metrics name jobs, endpoints and keys, so a stranger must not read them: loopback, or a token.
"""

from ipaddress import ip_address
from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from ebbtide.config.sections.scalars import RelativePath
from ebbtide.config.sections.section import Section


class MetricsSection(Section):
    """Prometheus metrics of the arbiter."""

    enabled: bool = Field(
        True, description="Whether the arbiter opens a port for metrics. Default true: it costs nothing."
    )
    host: str = Field(
        "127.0.0.1",
        min_length=1,
        description="IP address to listen on, on the arbiter's node. Default loopback: a Prometheus on that node; any "
        "other address needs a token_file.",
    )
    port: Annotated[int, Field(ge=0, le=65535)] = Field(
        0,
        description="TCP port; 0 = any free one, which `ebbtide status --json` and the targets file name. Default 0: "
        "several pools on one machine.",
    )
    token_file: RelativePath | None = Field(
        None,
        validate_default=True,
        description="File on the arbiter's node with a token of 16 characters or more, which every scrape must then "
        "show as `Authorization: Bearer`. Default none: allowed on loopback only.",
    )

    @field_validator("host")
    @classmethod
    def _is_address(cls, host: str) -> str:
        try:
            ip_address(host)
        except ValueError:
            raise PydanticCustomError("address", "expected an IP address, such as 127.0.0.1") from None
        return host

    @field_validator("token_file")
    @classmethod
    def _strangers_need_a_token(cls, token_file: object, info: ValidationInfo) -> object:
        host = info.data.get("host")
        if token_file is None and host is not None and not ip_address(host).is_loopback:
            raise PydanticCustomError(
                "open_metrics", "a token_file is required, because metrics.host is open to other machines"
            )
        return token_file
