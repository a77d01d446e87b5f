"""``make evidence`` after a change of one module: the rows behind which it stands are stale, and no others."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import grimp
import pytest

from evidence.carried import ROOMS
from evidence.closure import OURS, PRODUCT
from evidence.processes import PROCESSES
from evidence.results import RESULTS, cases_of
from evidence.stamps import Begun, with_stamps

ROOT = Path(__file__).parents[2]

# One that many stand on, and some that few do.
CHANGED = (
    "ebbtide.pool.state",
    "ebbtide_serve.gateway.admission.held_requests",
    "ebbtide_autoscaler.core.decide.policy",
    "ebbtide_simulator.played.one_run",
    "ebbtide_testing.cluster.fake_gang",
    "ebbtide.storage.posix.posix_transport",
    "ebbtide_train.session.session",
)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources in which every case of every result is fresh."""
    top = tmp_path_factory.mktemp("tree")
    for name in (*ROOMS, "benchmarks", "evidence"):
        shutil.copytree(ROOT / name, top / name, ignore=shutil.ignore_patterns("results", "carried.json"))
    folder = top / "benchmarks" / "results"
    folder.mkdir()
    for result in RESULTS:
        stamps = {case.name: Begun.now(case.processes).ended() for case in cases_of(result.name)}
        (folder / f"{result.name}.json").write_text(json.dumps(with_stamps({}, stamps)))
    return top


def report(tree: Path) -> dict[str, Any]:
    rooms = [str(tree / room) for room in ROOMS]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([*rooms, str(tree)])}
    command = [sys.executable, "-m", "evidence", "show", "--json"]
    done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def path_of(tree: Path, module: str) -> Path:
    [room] = [room for room in ROOMS if (tree / room / module.split(".")[0]).is_dir()]
    return tree / room / (module.replace(".", "/") + ".py")


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(*OURS, exclude_type_checking_imports=True, cache_dir=None)


def stands_on(graph: grimp.ImportGraph, processes: tuple[str, ...], module: str) -> bool:
    """From the other end: whether one of the processes' first modules is downstream of the module that changed.

    Importing a module runs its packages too, so those that import something of a package import what it imports.
    """
    seen, waiting = set[str](), [module]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        waiting += graph.find_modules_that_directly_import(name)
        if graph.find_children(name):  # a package: who imports what is in it runs it
            waiting += graph.find_descendants(name)
    return any(begin in seen for kind in processes for begin in PROCESSES.get(kind, (kind,)))


@pytest.mark.parametrize("module", CHANGED)
def test_the_rows_behind_which_a_module_stands_are_stale_and_no_others(
    tree: Path, graph: grimp.ImportGraph, module: str
) -> None:
    file = path_of(tree, module)
    before = file.read_text()
    file.write_text(before + "\nCHANGED = True\n")
    try:
        told = report(tree)
    finally:
        file.write_text(before)
    cases = [(result.name, case) for result in RESULTS for case in cases_of(result.name)]
    expected = {(name, case.name) for name, case in cases if stands_on(graph, case.processes, module)}
    stale = {(name, case) for name, one in told.items() for case in one["stale"]}
    assert stale == expected
    assert not any(one["missing"] for one in told.values())
    fresh = {(name, case) for name, one in told.items() for case in one["fresh"]}
    assert fresh | stale == {(name, case.name) for name, case in cases}


def test_the_modules_tell_rows_apart(graph: grimp.ImportGraph) -> None:
    """Each of the changes above reaches another set of results, and none reaches all or nothing by accident."""
    reached = {
        module: frozenset(
            result.name
            for result in RESULTS
            if any(stands_on(graph, c.processes, module) for c in cases_of(result.name))
        )
        for module in CHANGED
    }
    assert len(set(reached.values())) >= 4, reached


def test_comments_and_docstrings_make_nothing_stale(tree: Path) -> None:
    file = path_of(tree, "ebbtide.pool.state")
    before = file.read_text()
    file.write_text("# a comment\n" + before.replace('"""', '"""Now: ', 1))
    try:
        told = report(tree)
    finally:
        file.write_text(before)
    assert not any(one["stale"] for one in told.values())


def test_every_room_is_looked_into() -> None:
    assert {module.split(".")[0] for module in CHANGED} == set(PRODUCT)
