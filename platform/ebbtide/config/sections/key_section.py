"""Who may call the gateway, and how much. A secret is named here, never written here."""

from enum import Enum
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from ebbtide.config.sections.scalars import Count, RelativePath, Slug
from ebbtide.config.sections.section import Section


class Scope(Enum):
    """What a key opens."""

    INFERENCE = "inference"
    ADMIN = "admin"


class Secret(Section):
    """Where a key's secret is: exactly one of the three."""

    file: RelativePath | None = Field(
        None, description="File that holds the secret and nothing else. Relative to this file."
    )
    env: Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")] | None = Field(
        None, description="Environment variable of `ebbtide up` that holds the secret."
    )
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = Field(
        None, description="SHA-256 of the secret, 64 hex digits; the secret itself is then known to clients alone."
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> "Secret":
        given = [name for name in ("file", "env", "sha256") if getattr(self, name) is not None]
        if len(given) != 1:
            found = f"{' and '.join(given)} are given" if given else "none is given"
            raise PydanticCustomError(
                "secret_reference", "expected exactly one of file, env and sha256, and {found}", {"found": found}
            )
        return self


def _endpoints(value: object) -> object:
    if value == "all":
        return value
    if isinstance(value, list | tuple) and all(isinstance(name, str) for name in value):
        return tuple(value)
    raise PydanticCustomError("endpoints", 'expected a list of endpoint names, or "all"')


class KeySection(Section):
    """One API key. Limits that are null are not enforced."""

    name: Slug = Field(description="Name of the key in logs and reports; never its secret.")
    secret: Secret = Field(description="Where its secret is.")
    scopes: tuple[Scope, ...] = Field((Scope.INFERENCE,), description="What it opens. Default inference: the least.")
    endpoints: Annotated[Literal["all"] | tuple[str, ...], BeforeValidator(_endpoints)] = Field(
        "all", description='Names of the endpoints it may use, or "all" (default: one key, one user).'
    )
    requests_per_minute: Count | None = Field(None, description="Requests per minute; null = no limit.")
    tokens_per_minute: Count | None = Field(
        None, description="Prompt and generated tokens per minute; null = no limit."
    )
    concurrent_streams: Count | None = Field(None, description="Requests in flight at once; null = no limit.")
    revoked: bool = Field(False, description="A revoked key is refused, and stays listed so that its name is known.")

    @field_validator("scopes")
    @classmethod
    def _opens_something(cls, value: tuple[Scope, ...]) -> tuple[Scope, ...]:
        if not value:
            raise PydanticCustomError("scopes", "a key without scopes opens nothing; set revoked: true to close it")
        return value
