"""The shape of the repository: what must never exist, and how long a file or a function may be."""

import ast
import platform
import re
import subprocess
import sysconfig
import tomllib
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("platform", "autoscaler", "serve_apps", "train_jobs", "quickstart")
FILE_LINES = 500
FUNCTION_LINES = 60
SOURCES = sorted(
    path
    for folder in (*ROOMS, "tests", "benchmarks", "evidence", "ci")
    for path in (ROOT / folder).rglob("*.py")
    if "__pycache__" not in path.parts
)


@pytest.mark.parametrize("root", ROOMS)
def test_a_source_root_is_not_a_package(root: str) -> None:
    assert not (ROOT / root / "__init__.py").exists(), "it would shadow the standard library's platform"


def test_tests_are_no_packages() -> None:
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_the_standard_librarys_platform_wins() -> None:
    assert Path(platform.__file__).parent == Path(sysconfig.get_paths()["stdlib"])


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_are_short(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= FILE_LINES
    if "tests" in path.parts:
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < FUNCTION_LINES, f"{node.name} is too long"


def test_every_module_says_what_it_is() -> None:
    silent = [p for p in SOURCES if "tests" not in p.parts and not ast.get_docstring(ast.parse(p.read_text()))]
    assert silent == []


def test_a_module_that_says_it_is_pure_is_held_to_it() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    held = {name for one in contracts if "pure" in one["name"] for name in one["source_modules"]}
    free = []
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            where = path.relative_to(ROOT / room).with_suffix("").parts
            if "__init__" not in where and re.search(
                r"\bpure\b", ast.get_docstring(ast.parse(path.read_text())) or "", re.IGNORECASE
            ):
                names = {
                    ".".join(where[:count]) for count in range(1, len(where) + 1)
                }  # a package stands for its modules
                free += [".".join(where)] if names.isdisjoint(held) else []
    assert free == []


WIDEST = 15


def test_a_folder_has_few_modules() -> None:
    counts = Counter(path.parent for path in SOURCES if "tests" not in path.parts and path.name != "__init__.py")
    rooms = ("platform", "autoscaler", "serve_apps", "train_jobs", "quickstart")
    wide = {
        str(folder.relative_to(ROOT))
        for folder, count in counts.items()
        if count > WIDEST and folder.relative_to(ROOT).parts[0] in rooms
    }
    assert wide == set()


def test_no_test_is_imported_by_another_file() -> None:
    """What several tests need is in `tests.builders`, or in a module beside them that is no test."""
    found = [
        f"{path.relative_to(ROOT)} imports {node.module}"
        for path in (ROOT / "tests").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and re.match(r"tests\.(.+\.)?test_\w+$", node.module or "")
    ]
    assert found == []


def test_no_tracked_file_names_a_path_of_one_machine() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    forbidden = ["/" + "work/", "/" + "root/"]
    found = []
    for name in tracked.stdout.split():
        if (ROOT / name).is_file():
            text = (ROOT / name).read_text(errors="ignore")
            found += [f"{name}: {word}" for word in forbidden if word in text]
    assert found == []
