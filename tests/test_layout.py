"""The shape of the repository: what must never exist, and how long a file or a function may be."""

import ast
import platform
import subprocess
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("platform", "autoscaler", "serve_apps", "train_jobs")
FILE_LINES = 500
FUNCTION_LINES = 60
SOURCES = sorted(
    path
    for folder in (*ROOMS, "tests", "benchmarks")
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


def test_no_tracked_file_names_a_path_of_one_machine() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    forbidden = ["/" + "work/", "/" + "root/"]
    found = []
    for name in tracked.stdout.split():
        if (ROOT / name).is_file():
            text = (ROOT / name).read_text(errors="ignore")
            found += [f"{name}: {word}" for word in forbidden if word in text]
    assert found == []
