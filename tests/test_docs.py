"""What README and docs name is there: commands with their options, make targets, files, constants, metrics."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from ebbtide.cli.main import cli
from ebbtide.telemetry.catalogue import families, series_names

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SOURCES = ("platform", "autoscaler", "serve_apps", "train_jobs", "quickstart", "benchmarks", "tests", "configs", "docs")
IDS = [str(page.relative_to(ROOT)) for page in PAGES]


def code(text: str) -> Iterator[str]:
    """What is set as code: lines of shell blocks, and spans."""
    for block in re.findall(r"```(?:bash)?\n(.*?)```", text, re.S):
        yield from (line.split(" #")[0].strip() for line in block.splitlines())
    yield from (" ".join(span.split()) for span in re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", text, flags=re.S)))


def command_of(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that the words name, and the words after its name."""
    command: click.Command = cli
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(click.Context(command), words[0])
        assert found is not None, f"there is no command {words[0]!r}"
        command, words = found, words[1:]
    return command, words


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_command_and_option_exists(page: Path) -> None:
    for text in code(page.read_text()):
        said = re.match(r"(?:eval \"\$\()?ebbtide ([a-z|]+.*)", text)
        if said is None:
            continue
        names, *arguments = said[1].partition(" -- ")[0].rstrip(')"').split()  # what follows is another program's
        for first in names.split("|"):
            command, rest = command_of([first, *arguments])
            known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
            options = {word.strip("[]").split("=")[0] for word in rest if word.strip("[]").startswith("-")}
            assert options <= known | {"--help"}, f"{text}: {options - known}"


def test_no_page_and_no_source_names_notes_that_are_not_here() -> None:
    lacking = re.compile(r"\bfacts/|\bDESIGN\b")
    files = [
        path for folder in SOURCES for path in (ROOT / folder).rglob("*.*") if path.suffix in {".py", ".md", ".yaml"}
    ]
    named = [
        str(path.relative_to(ROOT)) for path in {*files, *PAGES} - {Path(__file__)} if lacking.search(path.read_text())
    ]
    assert not named, f"{sorted(named)}: what a figure comes from stands in docs/origins.md"


def test_every_constant_of_the_page_of_origins_is_there() -> None:
    page = (ROOT / "docs" / "origins.md").read_text()
    files = [path for folder in SOURCES[:6] for path in (ROOT / folder).rglob("*.py")]
    named = re.findall(r"`(?:[\w/]+/)?(\w+)\.(?:\w+\.)?(\w+)`", "\n".join(re.findall(r"^\| (.*?) \|", page, re.M)))
    assert len(named) > 20
    for module, name in named:
        there = [path for path in files if path.stem == module]
        assert any(re.search(rf"^ *{name}\b.*=", path.read_text(), re.M) for path in there), f"{module}.{name}"


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_make_target_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = {found[1] for text in code(page.read_text()) if (found := re.match(r"(?:\w+=\S+ )?make ([a-z-]+)", text))}
    assert named <= targets, named - targets


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_file_and_module_exists(page: Path) -> None:
    text = page.read_text()
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (page.parent / link).exists(), link
    for span in code(text):
        for word in re.findall(r"[\w./-]+/[\w./-]*", span):
            if word.split("/")[0] in SOURCES and "*" not in span and "<" not in span:
                first, _, rest = word.partition("/")
                inside = (
                    any((ROOT / first).glob(f"*/{rest}")) if rest else False
                )  # as rooms are told of: without the package
                assert (ROOT / word).exists() or inside or "results/" in word, word
        for module in re.findall(r"python -m (benchmarks[\w.]*|ebbtide[\w.]*|tests[\w.]*)", span):
            places = [ROOT / folder / module.replace(".", "/") for folder in (".", *SOURCES[:6])]
            assert any(p.with_suffix(".py").exists() or p.is_dir() for p in places), module


def test_every_bound_of_the_page_of_limits_is_a_constant_of_that_module() -> None:
    page = (ROOT / "docs" / "operating-limits.md").read_text()
    files = [path for folder in SOURCES[:6] for path in (ROOT / folder).rglob("*.py")]
    named = re.findall(r"`(?:([\w.]+)\.)?(_?[A-Z][A-Z_]{3,})`", page)
    assert len(named) > 10
    for module, name in named:
        last = module.rpartition(".")[2]
        there = [path for path in files if not last or path.stem == last]
        assert any(re.search(rf"^{name}\b.* = ", path.read_text(), re.M) for path in there), f"{module}.{name}"


def test_every_place_of_the_glossary_is_there() -> None:
    rows = re.findall(r"^\|[^|]*\|[^|]*\| (.*) \|$", (ROOT / "docs" / "glossary.md").read_text(), re.M)
    assert len(rows) > 30
    bases = [ROOT / folder for folder in SOURCES[:6]] + [ROOT / "autoscaler" / "ebbtide_autoscaler"]
    for row in rows:
        beside = ""  # a bare name lies in the folder of the one before
        for name in re.findall(r"`([\w/*]+(?:\.py)?)`", row):
            found = [one for base in bases for one in (name.rstrip("/"), beside + name) if list(base.glob(one))]
            assert found, f"{row}: {name}"
            beside = name.rpartition("/")[0] + "/" if "/" in name else beside


def test_every_room_is_on_the_page_of_the_architecture() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    packages = ("platform/ebbtide", "serve_apps/ebbtide_serve", "train_jobs/ebbtide_train")
    autoscaler = "autoscaler/ebbtide_autoscaler"
    rooms = {
        path.parent.name
        for package in (*packages, autoscaler, f"{autoscaler}/core", "platform/ebbtide/storage")
        for path in (ROOT / package).glob("*/__init__.py")
    }
    unnamed = {name for name in rooms if not re.search(rf"`(\w+/)*{name}`", page)}
    assert unnamed == {"core", "examples", "testing"}


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_metric_exists(page: Path) -> None:
    known = {name for family in families().values() for name in series_names(family)} | set(families())
    named = {span for text in code(page.read_text()) for span in re.findall(r"\bebbtide_[a-z_]+\b", text)}
    packages = {path.name for folder in SOURCES[:5] for path in (ROOT / folder).glob("ebbtide_*")}
    assert {name for name in named if not name.startswith(tuple(packages))} <= known
