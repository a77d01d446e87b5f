"""Finds a job's train function without importing anything: no code of the job runs, and torch stays unloaded.

A name that is only made at run time (``globals()[...]``, a star import) cannot be seen in the source; where a module
does such things, it is believed.
"""

import ast
import importlib
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from ebbtide.config.suggestions import did_you_mean


def entrypoint_fault(entrypoint: str, *, working_dir: Path | None) -> tuple[str, str | None] | None:
    """Why ``module:function`` cannot be imported (message, hint), or None when all is well as far as can be seen."""
    module, _, function = entrypoint.partition(":")
    importlib.invalidate_caches()  # a file written a moment ago must be seen
    spec = _find(module, working_dir)
    if spec is None:
        where = (
            f" in {working_dir} or on the import path"
            if working_dir
            else " on the import path; is working_dir missing?"
        )
        return f"there is no module {module!r}{where}", None
    if spec.origin is None or not spec.origin.endswith(".py"):
        return (f"{module!r} is a package without code", None) if spec.loader is None else None
    try:
        tree = ast.parse(Path(spec.origin).read_bytes(), filename=spec.origin)
    except OSError as error:
        return f"{spec.origin} cannot be read: {error.strerror}", None
    except SyntaxError as error:
        return f"{spec.origin}, line {error.lineno}: {error.msg}", None
    except ValueError as error:  # a null byte in the source
        return f"{spec.origin} is no Python source: {error}", None
    names = dict(_top_level_names(tree.body))
    if function in names or "*" in names:
        kind = names.get(function)
        return (f"{function!r} is {kind}, and a train function is an ordinary function", None) if kind else None
    return f"{spec.origin} defines no {function!r}", did_you_mean(function, names)


def _find(module: str, working_dir: Path | None) -> ModuleSpec | None:
    # importlib.util.find_spec would import the parents of a nested module; asking level by level does not.
    top, *inner = module.split(".")
    spec = PathFinder.find_spec(top, [str(working_dir)]) if working_dir else None
    for finder in () if spec else sys.meta_path:
        spec = finder.find_spec(top, None)
        if spec:
            break
    for name in inner:
        if spec is None or spec.submodule_search_locations is None:
            return None
        # By its last name alone: for a full one, Python looks for the parent among the imported modules.
        spec = PathFinder.find_spec(name, list(spec.submodule_search_locations))
    return spec


def _top_level_names(body: list[ast.stmt]) -> Iterator[tuple[str, str | None]]:
    """Names that the module defines, each with what rules it out as a train function, if anything does."""
    for statement in body:
        match statement:
            case ast.FunctionDef():
                yield statement.name, None
            case ast.AsyncFunctionDef():
                yield statement.name, "a coroutine function"
            case ast.ClassDef():
                yield statement.name, "a class"
            case ast.Import() | ast.ImportFrom():
                yield from (((alias.asname or alias.name).partition(".")[0], None) for alias in statement.names)
            case ast.Assign():
                targets = [node for target in statement.targets for node in ast.walk(target)]
                yield from ((node.id, None) for node in targets if isinstance(node, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name, None
            case ast.If():
                yield from _top_level_names([*statement.body, *statement.orelse])
            case ast.Try():
                handlers = [inner for handler in statement.handlers for inner in handler.body]
                yield from _top_level_names([*statement.body, *handlers, *statement.orelse, *statement.finalbody])
            case ast.With():
                yield from _top_level_names(statement.body)
