"""The static closure of a process: what it imports, and the packages that this is in."""

import ast
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from evidence.closure import PRODUCT, NoSuchModule, modules_behind
from evidence.guards.comments import ROOMS
from evidence.processes import POOL, PROCESSES

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("kind", PROCESSES)
def test_every_process_begins_in_modules_that_exist_and_ends_in_the_product(kind: str) -> None:
    found = modules_behind(PROCESSES[kind])
    assert set(PROCESSES[kind]) <= set(found)
    assert {name.split(".")[0] for name in found} <= set(PRODUCT)


def test_a_process_that_begins_nowhere_is_an_error_that_says_where_to_look() -> None:
    with pytest.raises(NoSuchModule, match="evidence/processes"):
        modules_behind(["ebbtide.no_such_module"])


def test_packages_count_since_python_runs_them() -> None:
    assert "ebbtide" in modules_behind(["ebbtide.pool.ids"]) and "ebbtide.pool" in modules_behind(["ebbtide.pool.ids"])


def test_a_closure_has_all_that_importing_loads() -> None:
    """Held against Python itself: what a fresh interpreter has loaded is in the closure."""
    import subprocess

    names = [
        "ebbtide_autoscaler.core.decide.policy",
        "ebbtide_serve.gateway.admission.held_requests",
        "ebbtide.storage.objects.stored_file",
    ]
    code = f"import sys\nfor name in {names}: __import__(name)\nprint(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name for name in done.stdout.split() if name.split(".")[0] in PRODUCT}
    assert loaded <= set(modules_behind(names))
    assert len(loaded) > 20


def test_what_is_only_for_type_checkers_does_not_count() -> None:
    spec = find_spec("ebbtide.pool.lookup.index")
    assert spec is not None and spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text())
    guarded = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    if not guarded:
        pytest.skip("no such import there any more")
    only = {node.module for one in guarded for node in one.body if isinstance(node, ast.ImportFrom)}
    assert only.isdisjoint(set(modules_behind(["ebbtide.pool.lookup.index"])))


def test_a_pool_has_its_processes() -> None:
    assert set(POOL) <= set(PROCESSES)


# Started by name, and behind no result: `ebbtide doctor`, `probe`, the exactness checks of training, `validate`, the
# example model of `init`; and the package of commands that a registry names.
APART = {
    "ebbtide.diagnostics.probe.rehearsal_child",
    "ebbtide.storage.device.gds_probe",
    "ebbtide_serve.examples.tiny_model",
    "ebbtide_serve.vllm_versions.collect",
    "ebbtide_train.commands",
    "ebbtide_train.verification.control_run",
    "ebbtide_train.verification.plain_training",
}


def test_every_module_that_is_started_by_name_begins_a_process_or_is_in_one() -> None:
    """``python -m``, registries and entry points are no imports: such modules must be listed."""
    listed = {name for begin in PROCESSES.values() for name in modules_behind(begin)}
    named = {
        node.value
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("ebbtide")
    }
    started = {name for name in named if "." in name and _is_module(name)}
    assert len(started) > 5
    assert started - listed <= APART


def _is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False
