"""Teams that share a pool: what each is promised, how the rest is divided, and what is too much."""

from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from ebbtide.config.sections.scalars import Count, CountOrZero
from ebbtide.config.sections.section import Section


class TeamSection(Section):
    """The share of one team's jobs. Teams that are not listed share one entry: no guarantee, weight 1, no quota."""

    name: str = Field(min_length=1, description="As `team` of its jobs.")
    guarantee: CountOrZero = Field(
        0,
        description="Slots that its jobs get before those of teams that have more than theirs; others may use them "
        "until then, and step aside. It holds against other teams, not against endpoints, which go first. Default 0.",
    )
    weight: float = Field(
        1.0,
        gt=0,
        le=10**6,
        description="Its part of what is beyond guarantees: of teams that wait, the one with the fewest slots by its "
        "weight is next. Default 1: equal parts.",
    )
    quota: Count | None = Field(
        None, description="The most slots that its jobs may have, whatever is free. Default null: no bound."
    )

    @field_validator("name")
    @classmethod
    def _not_the_rest(cls, value: str) -> str:
        if value == "others":
            raise PydanticCustomError("name", "'others' are the teams that are not listed: choose another name")
        return value

    @field_validator("quota")
    @classmethod
    def _not_below_guarantee(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and value < info.data.get("guarantee", 0):
            raise PydanticCustomError(
                "range",
                "quota is {quota}, less than guarantee, which is {guarantee}",
                {"quota": value, "guarantee": info.data["guarantee"]},
            )
        return value
