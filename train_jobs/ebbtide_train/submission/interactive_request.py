"""What `ebbtide run` asks for, as it travels to the session's driver: one small JSON file."""

from typing import Annotated, Self

from pydantic import Field, ValidationError

from ebbtide.config.sections.scalars import Seconds, SecondsOrZero, SizeBytes, Slug
from ebbtide.config.sections.section import Section

GRACE_S = 120.0
"""From "step aside" to kill. CRIU wrote 4 GiB in 18 s on a slow disk (measured): 25 GiB in this time."""


class Request(Section):
    """One session."""

    name: Slug
    command: Annotated[tuple[Annotated[str, Field(pattern=r"^[^\x00]*$")], ...], Field(min_length=1)]
    cwd: Annotated[str, Field(pattern=r"^/[^\x00]*$")]
    owner: str = Field("unassigned", min_length=1)
    idle_after_s: SecondsOrZero | None = None  # 0: never; None: as the pool says
    priority: int = 0
    grace_s: Seconds = GRACE_S
    host_memory: SizeBytes = 2**20  # of a session that is parked in place on a GPU; an image takes none
    cpus: float = Field(1.0, ge=0, le=4096)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Of the file.

        Raises:
            ValueError: it is none of ours, or says what cannot be; one line for each problem.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise ValueError(_words(error)) from None

    @classmethod
    def of(cls, **given: object) -> Self:
        """From plain values. Same errors."""
        try:
            return cls.model_validate(given, strict=False)
        except ValidationError as error:
            raise ValueError(_words(error)) from None


def _words(error: ValidationError) -> str:
    problems = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors(include_url=False)]
    return f"session: {'; '.join(problems)}"
