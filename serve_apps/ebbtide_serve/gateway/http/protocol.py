"""What the gateway checks of a request body before it passes the very same bytes on.

Only what the gateway itself needs, or what is plainly wrong, is looked at; every other field belongs to the engine,
which answers its own 4xx. Parsing is pydantic's (Rust): bounded depth, no recursion in Python.
"""

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import ErrorDetails

from ebbtide_serve.gateway.errors import Refusal

# They make an engine open connections to addresses that the client names.
FORBIDDEN_FIELDS = ("kv_transfer_params", "ec_transfer_params")
ECHO_MAX_CHARS = 100  # of a client's own text in an error message

Body = TypeVar("Body", bound="_Generate")


class _Generate(BaseModel):
    """What both kinds of request have in common."""

    model_config = ConfigDict(
        extra="allow",
        strict=True,  # guard: the type of a client's field is not guessed
        frozen=True,
    )

    model: str = Field(min_length=1, description="Name of the endpoint, as listed by /v1/models.")
    stream: bool | None = Field(default=None, description="Send the answer as server-sent events.")
    stream_options: dict[str, Any] | None = Field(default=None, description="E.g. {'include_usage': true}.")
    max_tokens: int | None = Field(default=None, ge=0, description="Most tokens to generate.")
    temperature: float | None = Field(default=None, ge=0, description="0 is greedy.")
    top_p: float | None = Field(default=None, ge=0, le=1)
    n: int | None = Field(default=None, ge=1, description="Number of answers.")
    seed: int | None = None

    def tokens_wanted(self) -> int:
        """Most tokens that the request says it will generate; 0 when it does not say."""
        return (self.max_tokens or 0) * (self.n or 1)


class ChatRequest(_Generate):
    """POST /v1/chat/completions."""

    messages: list[dict[str, Any]] = Field(min_length=1, description="The conversation so far.")
    max_completion_tokens: int | None = Field(default=None, ge=0, description="Newer name of max_tokens.")

    @field_validator("messages")
    @classmethod
    def _roles(cls, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for number, message in enumerate(messages):
            if not isinstance(message.get("role"), str):
                raise ValueError(f"message {number} has no 'role'")
        return messages

    def tokens_wanted(self) -> int:
        """Most tokens that the request says it will generate; 0 when it does not say."""
        return (self.max_completion_tokens or self.max_tokens or 0) * (self.n or 1)


class CompletionRequest(_Generate):
    """POST /v1/completions."""

    prompt: str | list[str] | list[int] | Annotated[list[list[int]], Field(min_length=1)] = Field(
        description="Text, or token ids; a list of them asks for several answers."
    )


class ErrorDetail(BaseModel):
    """OpenAI's error."""

    message: str
    type: str
    param: str | None
    code: str | int | None


class ErrorReply(BaseModel):
    """OpenAI's error body."""

    error: ErrorDetail


class ModelCard(BaseModel):
    """One endpoint in /v1/models."""

    id: str
    object: str = "model"
    created: int = Field(description="Seconds since 1970.")
    owned_by: str = "ebbtide"


class ModelList(BaseModel):
    """The answer of /v1/models."""

    object: str = "list"
    data: list[ModelCard]


class Health(BaseModel):
    """The answer of /health."""

    status: str


def parse(kind: type[Body], raw: bytes) -> Body:
    """The body as ``kind``.

    Raises:
        Refusal: 400 that names the field.
    """
    try:
        body = kind.model_validate_json(raw)
    except ValidationError as error:
        raise _refusal(error.errors(include_url=False, include_input=False)) from None
    for name in FORBIDDEN_FIELDS:
        if name in (body.model_extra or {}):  # guard: fields that make an engine connect elsewhere are refused
            raise Refusal(400, f"The field {name!r} is not taken from clients.", "invalid_request_error", param=name)
    return body


def echo(text: str) -> str:
    """A client's own words, short enough for an error message."""
    # guard: a client's own words in an error are short
    return text if len(text) <= ECHO_MAX_CHARS else text[:ECHO_MAX_CHARS] + "..."


def _refusal(errors: list[ErrorDetails]) -> Refusal:
    first = errors[0]
    if first["type"] == "json_invalid":
        return Refusal(400, f"The body is not valid JSON: {first['msg']}.", code="invalid_json")
    where = first["loc"][:1]
    if not where:
        return Refusal(400, "The body must be a JSON object.", code="invalid_type")
    param = echo(str(where[0]))
    # A union reports each of its branches: say all that is wrong with the one field.
    wrong = dict.fromkeys(error["msg"] for error in errors if error["loc"][:1] == where)
    missing = first["type"] == "missing"
    message = f"'{param}' is required." if missing else f"'{param}': {'; '.join(wrong)}."
    return Refusal(400, message, code="missing_required_parameter" if missing else "invalid_value", param=param)
