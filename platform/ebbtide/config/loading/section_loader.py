"""Any YAML file of ours but the pool's, as its model; or every problem of it at once, each with its line and column."""

from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from ebbtide.config.errors import ConfigErrors
from ebbtide.config.loading.extensions import without_extensions
from ebbtide.config.loading.validation_messages import findings
from ebbtide.config.loading.yaml_document import parse
from ebbtide.config.loading.yaml_file import model_of, not_a_mapping, problem, read_text
from ebbtide.config.sections.section import Section

SectionT = TypeVar("SectionT", bound=Section)


def load_section(path: Path, model: type[SectionT]) -> SectionT:
    """What ``path`` holds.

    Raises:
        ConfigErrors: the file cannot be read or is wrong; holds every problem.
    """
    document = parse(read_text(path))
    problems = [problem(path, place, found) for place, found in document.findings]
    if not isinstance(document.data, dict):
        raise ConfigErrors(problems or [not_a_mapping(path, document.data)])
    if problems:
        raise ConfigErrors(problems)
    data = without_extensions(document.data, model)
    try:
        return model_of(model, data, path.absolute().parent.resolve())
    except ValidationError as error:
        found = findings(error, model)
    raise ConfigErrors([problem(path, document.place(one.loc, at_key=one.at_key), one) for one in found])
