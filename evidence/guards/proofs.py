"""Finds the tests that prove guards: those marked ``@pytest.mark.proves("name", ...)``.

The marker stands on a test function or its class, on a case (``pytest.param(..., marks=...)``) in the function's
decorators, or in a module's ``pytestmark``. It is read from the source, without importing a test.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Proof:
    """A test says that it fails without a guard; ``test`` is as pytest takes it: ``file::Class::function``."""

    guard: str
    test: str


def proofs_of(root: Path) -> list[Proof]:
    """All proofs below ``tests/``."""
    return [
        proof
        for path in sorted((root / "tests").rglob("test_*.py"))
        if "mark.proves" in (source := path.read_text())
        for proof in proofs_in(source, str(path.relative_to(root)))
    ]


def proofs_in(source: str, file: str) -> Iterator[Proof]:
    """The proofs of one file."""
    tree = ast.parse(source)
    for node in tree.body:
        if isinstance(node, ast.Assign) and [ast.unparse(one) for one in node.targets] == ["pytestmark"]:
            yield from (Proof(name, file) for name in _named(node.value))
    yield from _below(tree, file)


def _below(parent: ast.Module | ast.ClassDef, where: str) -> Iterator[Proof]:
    for node in parent.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            here = f"{where}::{node.name}"
            for decorator in node.decorator_list:
                yield from (Proof(name, here) for name in _named(decorator))
            if isinstance(node, ast.ClassDef):
                yield from _below(node, here)


def _named(expression: ast.expr) -> Iterator[str]:
    for node in ast.walk(expression):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.proves":
            yield from (ast.literal_eval(argument) for argument in node.args)
