"""What interactive sessions get where `ebbtide run` says nothing else: when they count as idle, and who is told."""

from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from ebbtide.config.sections.scalars import RelativePath, Seconds, SecondsOrZero
from ebbtide.config.sections.section import Section


class SmtpSection(Section):
    """The mail server that takes notices to owners; those whose owner is a mail address get one."""

    host: str = Field(min_length=1, description="Name or address of the server.")
    port: int = Field(587, ge=1, le=65535, description="Its TCP port. Default 587: submission with STARTTLS.")
    sender: str = Field(pattern=r"^[^@\s]+@[^@\s]+$", description="Address that the mails come from.")
    user: str = Field("", description='Name to log in with. Default "": no log-in.')
    password_file: RelativePath | None = Field(
        None, description="File with the password, readable on every node. Default none."
    )
    starttls: bool = Field(
        True, description="Whether the connection is encrypted first. Default true: a password must not go in the open."
    )


class SessionsSection(Section):
    """Idle sessions: told, then parked, never killed."""

    idle_after_s: Seconds | None = Field(
        None,
        description="Seconds without use of CPU or GPU, and without a touch, after which a session is parked. "
        "Default null = never: only its owner knows what it waits for.",
    )
    warn_before_s: SecondsOrZero = Field(
        300,
        validate_default=True,
        description="Seconds before that at which its owner is told. Default 300: time to read a mail.",
    )
    webhook: str | None = Field(
        None,
        pattern=r"^https?://\S+$",
        description="URL that gets each notice as a JSON POST; keep the file private if it is secret. Default none.",
    )
    smtp: SmtpSection | None = Field(None, description="Mail server for notices. Default none.")

    @field_validator("warn_before_s")
    @classmethod
    def _within_the_idling(cls, value: float, info: ValidationInfo) -> float:
        idle_after_s = info.data.get("idle_after_s")
        if idle_after_s is not None and value >= idle_after_s:
            raise PydanticCustomError(
                "range",
                "warn_before_s is {warn}, which must be less than idle_after_s, which is {idle}",
                {"warn": f"{value:g}", "idle": f"{idle_after_s:g}"},
            )
        return value
