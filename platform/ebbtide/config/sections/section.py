"""What every section of the file has in common: it is frozen, strict, and refuses keys that it does not know.

Strict means that ``true`` is no number and ``"3"`` no count: a quoted value that was meant as a number is an error
with a line, not a guess.
"""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Base of all sections."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,  # an input may be a secret written in the wrong place
    )
