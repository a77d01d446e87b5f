"""A digest of modules: equal where the code is, whatever its comments, docstrings and layout."""

import ast
import hashlib
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from evidence.closure import modules_behind
from evidence.processes import PROCESSES

LENGTH = 16  # hexadecimal digits: 64 bits tell some thousand versions apart


def digest_of(processes: Iterable[str]) -> str:
    """Of all product code behind these kinds of processes; a name that is no kind is a module of the benchmarks.

    Raises:
        NoSuchModule: a process begins in a module that is not there.
    """
    return _digest(tuple(sorted(set(processes))))


def behind(processes: Iterable[str]) -> tuple[str, ...]:
    """The names of the modules that the digest is of."""
    return modules_behind(name for kind in processes for name in PROCESSES.get(kind, (kind,)))


@cache
def _digest(processes: tuple[str, ...]) -> str:
    whole = hashlib.sha256()
    for name in behind(processes):
        whole.update(name.encode() + b"\0" + code_digest(_path(name)).encode() + b"\n")
    return whole.hexdigest()[:LENGTH]


@cache
def code_digest(path: Path) -> str:
    """Of one file of Python."""
    return hashlib.sha256(plain(path.read_text()).encode()).hexdigest()


def plain(source: str) -> str:
    """The syntax tree of a module without its docstrings, as text."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and _says(node.body):
            node.body = node.body[1:] or [ast.Pass()]
    return ast.dump(tree)


def _says(body: list[ast.stmt]) -> bool:
    first = body[0] if body else None
    return isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)


def _path(module: str) -> Path:
    """Of its source. Nothing is imported: `find_spec` would load the packages that a module is in."""
    top, *below = module.split(".")
    spec = find_spec(top)
    assert spec is not None and spec.submodule_search_locations, f"{top} is no package here"
    place = Path(spec.submodule_search_locations[0]).joinpath(*below)
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
