"""What all readers of our YAML files share: the text, a section from its data, and a problem with its place."""

import json
from pathlib import Path
from typing import TypeVar

from ebbtide.config.errors import ConfigErrors, ConfigProblem
from ebbtide.config.finding import Finding, text_path
from ebbtide.config.loading.yaml_document import MAX_BYTES, Place
from ebbtide.config.sections.scalars import BASE_DIR
from ebbtide.config.sections.section import Section

SectionT = TypeVar("SectionT", bound=Section)


def read_text(path: Path) -> str:
    """The text of a file, or its beginning, which shows that it is too large.

    Raises:
        ConfigErrors: it cannot be read, or is no text.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        # Half a character at the cut end must not hide that.
        return content.decode("utf-8-sig", errors="strict" if len(content) <= MAX_BYTES else "replace")
    except OSError as error:
        hint = f"`ebbtide init {path}` writes one" if isinstance(error, FileNotFoundError) else None
        found = Finding((), f"cannot be read: {error.strerror}", hint)
        raise ConfigErrors([problem(path, Place(1, 1), found)]) from error
    except UnicodeDecodeError as error:
        raise ConfigErrors([problem(path, Place(1, 1), Finding((), f"is not UTF-8 text: {error.reason}"))]) from error


def model_of(model: type[SectionT], data: object, base_dir: Path) -> SectionT:
    """A section from its data; relative paths in it begin at ``base_dir``. Raises pydantic's ValidationError."""
    # By way of JSON: only there does pydantic's strict mode know that a list may be a tuple and a text a path.
    return model.model_validate_json(json.dumps(data), context={BASE_DIR: base_dir})


def not_a_mapping(path: Path, data: object) -> ConfigProblem:
    """What is wrong with a file that holds something else at its top."""
    why = "the file is empty" if data is None else "the file must be a mapping (key: value) at its top level"
    return problem(path, Place(1, 1), Finding((), why))


def problem(path: Path, place: Place, found: Finding) -> ConfigProblem:
    """A finding with the line and column at which it stands."""
    return ConfigProblem(
        file=path,
        line=place.line,
        column=place.column,
        path=text_path(found.loc),
        message=found.message,
        hint=found.hint,
    )
