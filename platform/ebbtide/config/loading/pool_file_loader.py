"""A YAML file to a :class:`PoolFile`, or every problem of it at once, each with its line and column.

Three looks at one file: the YAML itself, each section by its model, and what sections say about each other, the last
also over what is left when some sections are broken. Nothing outside the file is looked at: see ``check.py``.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from ebbtide.config.cross_checks import Parts, cross_check
from ebbtide.config.errors import ConfigErrors, ConfigProblem
from ebbtide.config.finding import Finding
from ebbtide.config.loading.extensions import without_extensions
from ebbtide.config.loading.validation_messages import findings
from ebbtide.config.loading.yaml_document import Document, as_mapping, parse
from ebbtide.config.loading.yaml_file import model_of, not_a_mapping, problem, read_text
from ebbtide.config.pool_file import PoolFile
from ebbtide.config.sections.endpoint_section import EndpointSection
from ebbtide.config.sections.gateway_section import GatewaySection
from ebbtide.config.sections.job_section import JobSection
from ebbtide.config.sections.key_section import KeySection
from ebbtide.config.sections.pool_section import PoolSection
from ebbtide.config.sections.section import Section
from ebbtide.config.sections.team_section import TeamSection

SectionT = TypeVar("SectionT", bound=Section)


@dataclass(frozen=True, slots=True)
class LoadedFile:
    """A valid file: its models, and where in the text each of their values stands."""

    path: Path
    config: PoolFile
    document: Document

    def problem(self, found: Finding) -> ConfigProblem:
        """A later finding (see ``check.py``) as a problem with line and column."""
        return problem(self.path, self.document.place(found.loc, at_key=found.at_key), found)


def load(path: Path | str) -> PoolFile:
    """The configuration in ``path``; relative paths in it are made absolute, from the file's own directory.

    Raises:
        ConfigErrors: the file cannot be read or is wrong; holds every problem.
    """
    return load_file(path).config


def load_file(path: Path | str) -> LoadedFile:
    """Like :func:`load`, and keeps the positions for checks that come later.

    Raises:
        ConfigErrors: the file cannot be read or is wrong; holds every problem.
    """
    path = Path(path)
    return load_text(read_text(path), path=path)


def load_text(text: str, *, path: Path) -> LoadedFile:
    """Like :func:`load_file` for a text that is at hand; ``path`` names it and is where relative paths start.

    Raises:
        ConfigErrors: the text is wrong; holds every problem.
    """
    document = parse(text)
    problems = [problem(path, place, found) for place, found in document.findings]
    if not isinstance(document.data, dict) or document.is_misread:
        raise ConfigErrors(problems or [not_a_mapping(path, document.data)])
    document.data = without_extensions(document.data, PoolFile)
    assert isinstance(document.data, dict)
    base_dir = path.absolute().parent.resolve()
    told = {found.loc for _, found in document.findings}
    config, findings = _validate(document.data, base_dir)
    problems += [problem(path, document.place(f.loc, at_key=f.at_key), f) for f in findings if f.loc not in told]
    if config is None or problems:
        raise ConfigErrors(problems)
    return LoadedFile(path, config, document)


def _validate(data: dict[str, object], base_dir: Path) -> tuple[PoolFile | None, list[Finding]]:
    try:
        return model_of(PoolFile, data, base_dir), []
    except ValidationError as error:
        # The root's own error (no place) repeats the cross checks: these are run below, with places.
        own = [found for found in findings(error) if found.loc]
    return None, own + cross_check(_salvage(data, base_dir))


def _salvage(data: dict[str, object], base_dir: Path) -> Parts:
    """The sections of a broken file that are valid by themselves."""

    def one(model: type[SectionT], value: object) -> SectionT | None:
        try:
            return model_of(model, value, base_dir)
        except ValidationError:
            return None

    def each(model: type[SectionT], kind: str) -> Iterator[tuple[int, SectionT]]:
        items = data.get(kind)
        for index, item in enumerate(items if isinstance(items, list) else []):
            section = one(model, item)
            if section is not None:
                yield index, section

    def names(kind: str) -> list[tuple[int, str]] | None:
        items = data.get(kind, [])
        if not isinstance(items, list):
            return None
        found = [(index, as_mapping(item).get("name")) for index, item in enumerate(items)]
        return [(index, name) for index, name in found if isinstance(name, str)]

    return Parts(
        pool=one(PoolSection, data.get("pool")),
        gateway=one(GatewaySection, data.get("gateway", {})),
        endpoints=dict(each(EndpointSection, "endpoints")),
        jobs=dict(each(JobSection, "jobs")),
        keys=dict(each(KeySection, "keys")),
        teams=dict(each(TeamSection, "teams")),
        names={kind: names(kind) for kind in Parts.LISTS},
        has_keys=bool(data.get("keys")),
    )
