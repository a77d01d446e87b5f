"""A publisher, a saving gang and a writer of refs are killed before and after each of their calls: nothing is harmed.

By the preloaded shim, so that the transport's own calls are among them. The table is printed: how many kills there were
of each kind, and after how many of them the new thing was there at once. ``publish_killer``, ``save_killer`` and
``import_killer`` die before any change as Python makes it; imports are only there, since whoever goes on with the work
of a dead one waits until it is dead for sure.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.platform.storage.shim.faults import NOT_THERE, ROOT, build, environment
from tests.platform.storage.stores import quick_directory
from tests.turns import SHORT_AND_WHOLE, said, turn

quick = pytest.fixture(quick_directory)

PROGRAM = Path(__file__).parent / "shim" / "store_kills.py"
COLUMNS = ("publish", "save", "move ref")
# Closing changes nothing: before it is after what came before it, and after it before what comes then.
OPS = ("open", "write", "allocate", "sync", "rename", "unlink", "mkdir")
MOMENTS = {"kill": "before", "after": "after"}
# A ref is one small file in a directory that is there.
NONE = {("move ref", op) for op in ("allocate", "mkdir", "unlink")}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("share", SHORT_AND_WHOLE)
@pytest.mark.parametrize("column", COLUMNS)
def test_a_kill_at_any_call_leaves_a_whole_store_in_which_the_same_succeeds(
    tmp_path: Path, quick: Path, record_property: Callable[[str, object], None], column: str, share: int
) -> None:
    orders = [
        {"column": column, "folder": str(quick), "op": op, "action": action, "share": share, "turn": turn()}
        for op in OPS
        for action in MOMENTS
        if (column, op) not in NONE
    ]
    ran = subprocess.run(
        [sys.executable, str(PROGRAM)],
        input="\n".join(map(json.dumps, orders)),
        env=environment(build(tmp_path)) | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    found = {(one["op"], one["action"]): one for one in map(json.loads, ran.stdout.splitlines())}
    lines = [f"{column}: {said(share)}"]
    for op in OPS:
        for action, moment in MOMENTS.items():
            one = found.get((op, action))
            text = NOT_THERE if one is None else f"{one['kills']} kills, {one['there']} done"
            lines.append(f"{f'{moment} {op}':18}{text}")
    record_property("table", "\n".join(lines))
    assert len(found) == len(orders)
    assert [one for one in found.values() if not one["kills"]] == [], "a kill that did not happen"
    renames = found["rename", "kill"], found["rename", "after"]
    assert renames[0]["there"] < renames[1]["there"] <= renames[1]["kills"], "the rename makes it visible"
