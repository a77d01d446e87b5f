"""``python -m evidence.guards check``: every guard has a test, every test that names guards names existing ones.

It also says which guards stand on a line on which nothing can be taken out. Pure but for reading the source.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from evidence.guards.comments import guards_of
from evidence.guards.mutations import NoCondition, ways
from evidence.guards.proofs import proofs_of


def complaints(root: Path) -> Iterator[str]:
    """What does not match, one line each."""
    guards, proofs = guards_of(root), proofs_of(root)
    counts = Counter(guard.name for guard in guards)
    proven = {proof.guard for proof in proofs}
    trees = {file: ast.parse((root / file).read_text()) for file in {guard.file for guard in guards}}
    for guard in guards:
        where = f"{guard.file}:{guard.line}"
        if counts[guard.name] > 1:
            yield f"{where}: {counts[guard.name]} guards have the name {guard.name!r}: give each its own"
        if guard.name not in proven:
            yield f"{where}: no test proves the guard {guard.name!r}: mark one with pytest.mark.proves"
        try:
            ways(trees[guard.file], guard.line)
        except NoCondition as error:
            yield f"{where}: the guard {guard.name!r} cannot be taken out: {error}"
    for proof in proofs:
        if proof.guard not in counts:
            yield f"{proof.test}: there is no guard {proof.guard!r} in the source"
