"""All modules of the product that a process imports, found in the source without running it.

A module's closure has what it imports, in functions too, and what those import; and the packages that each of them is
in, since Python runs their ``__init__``. Imports for type checkers only are left out.
"""

from collections.abc import Iterable
from functools import cache

import grimp

PRODUCT = ("ebbtide", "ebbtide_autoscaler", "ebbtide_serve", "ebbtide_simulator", "ebbtide_testing", "ebbtide_train")
OURS = (*PRODUCT, "benchmarks")


class NoSuchModule(ValueError):
    """A process kind begins in a module that is not there: it was moved or renamed."""


@cache
def _graph() -> grimp.ImportGraph:
    return grimp.build_graph(*OURS, exclude_type_checking_imports=True, cache_dir=None)


def modules_behind(begin: Iterable[str]) -> tuple[str, ...]:
    """The product's modules in the closure of ``begin``, sorted.

    Raises:
        NoSuchModule: one of ``begin`` does not exist.
    """
    graph = _graph()
    found: set[str] = set()
    waiting = list(begin)
    if gone := [name for name in waiting if name not in graph.modules]:
        raise NoSuchModule(f"no module {', '.join(gone)}: evidence/processes.py names where processes begin")
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += graph.find_modules_directly_imported_by(name)
            if "." in name:
                waiting.append(name.rpartition(".")[0])
    return tuple(sorted(name for name in found if name.split(".")[0] in PRODUCT))
