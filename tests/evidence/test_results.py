"""The list of results names the cases of the modules that measure."""

import subprocess
import sys

import pytest

from benchmarks import bulk, line, policy, preempt
from evidence.closure import PRODUCT
from evidence.digest import behind
from evidence.processes import PROCESSES
from evidence.results import KILL_MOVES, KILL_ROLES, RESULTS, SIM_BLOCK, SIM_SEEDS, Case, cases_of, module_of
from tests.integration.kills.moves import Move
from tests.integration.kills.processes import Role


def names(result: str) -> list[str]:
    return [case.name for case in cases_of(result)]


def test_every_kill_has_its_case() -> None:
    assert tuple(role.value for role in Role) == KILL_ROLES
    assert tuple(move.value for move in Move) == KILL_MOVES
    assert len(names("kills")) == len(Role) * len(Move)


def test_every_part_of_a_benchmark_has_its_case() -> None:
    from benchmarks.bulk.__main__ import PARTS as BULK
    from benchmarks.preempt.__main__ import GOALS as PREEMPT

    assert bulk and preempt
    assert names("line") == list(line.PARTS)
    assert names("storage") == list(BULK)
    assert names("preempt") == list(PREEMPT)
    assert names("policy") == [*policy.PARTS, *policy.OTHERS]


def test_every_seed_of_the_storms_is_in_one_block() -> None:
    seeds: list[int] = []
    for name in names("sim"):
        first, last = map(int, name.removeprefix("seeds ").split("-"))
        seeds += range(first, last + 1)
    assert seeds == list(range(SIM_SEEDS)) and len(seeds) % SIM_BLOCK == 0


@pytest.mark.parametrize("name", [one.name for one in RESULTS])
def test_each_case_has_a_name_of_its_own_and_product_code_behind_it(name: str) -> None:
    cases: list[Case] = cases_of(name)
    assert cases and len({case.name for case in cases}) == len(cases)
    for processes in {case.processes for case in cases}:
        assert all(kind in PROCESSES or "." in kind for kind in processes)
        assert {module.split(".")[0] for module in behind(processes)} <= set(PRODUCT)
        assert behind(processes)


def test_a_file_has_the_name_under_which_it_is_imported() -> None:
    assert module_of("platform/ebbtide/pool/ids.py") == "ebbtide.pool.ids"
    assert module_of("serve_apps/ebbtide_serve/gateway/__init__.py") == "ebbtide_serve.gateway"


def test_what_the_storms_play_in_this_process_is_in_their_closure() -> None:
    """`make sim` has no processes: what its modules import is what it stands on."""
    code = "import sys, tests.autoscaler.sim\nprint(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name for name in done.stdout.split() if name.split(".")[0] in PRODUCT}
    assert loaded - set(behind(["simulated arbiter"])) == set()
