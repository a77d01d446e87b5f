"""What an installation needs: the product imports what it declares, and a simulator's libraries are an extra."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ROOMS = ("platform", "autoscaler", "serve_apps", "train_jobs", "quickstart")
SOURCES = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
OF_AN_EXTRA = {
    "simulate": ("autoscaler/ebbtide_simulator/",),
    "examples": ("train_jobs/ebbtide_train/examples/", "serve_apps/ebbtide_serve/examples/"),
}
INSTALLED = {
    module: {package.lower().replace("_", "-") for package in packages}
    for module, packages in packages_distributions().items()
}
# Comes with vLLM or Ray, which need their own version of it; or where there is a GPU.
WITH_ANOTHER = {"torch", "vllm", "transformers", "pynvml", "cuda", "kvikio", "fastsafetensors", "starlette", "grpc"}
WITH_ANOTHER |= {"pydantic_core"}


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def declared(requirements: list[str]) -> set[str]:
    """Top-level modules of these distributions."""
    names = {re.split(r"[\[<>=;~! ]", one)[0].lower().replace("_", "-") for one in requirements}
    return {module for module, packages in INSTALLED.items() if names & packages}


def test_each_module_imports_what_is_declared_for_it() -> None:
    always, wrong = declared(PROJECT["dependencies"]), {}
    extras = {name: declared(PROJECT["optional-dependencies"][name]) for name in OF_AN_EXTRA}
    for path in SOURCES:
        where = str(path.relative_to(ROOT))
        allowed = always.union(*(extras[name] for name, folders in OF_AN_EXTRA.items() if where.startswith(folders)))
        names = {name for name in imported(path) if not name.startswith("ebbtide")}
        if more := names - sys.stdlib_module_names - WITH_ANOTHER - allowed:
            wrong[where] = more
    assert wrong == {}


def test_every_dependency_is_imported_by_the_product() -> None:
    used = {name for path in SOURCES for name in imported(path)}
    needless = [one for one in PROJECT["dependencies"] if not declared([one]) & used and not one.startswith("tzdata")]
    assert needless == []
