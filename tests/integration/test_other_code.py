"""Nodes of one cluster that run other code than the arbiter, for real: each is refused by name, ours goes on."""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ebbtide_autoscaler.control.agent_handles import HUNG_S
from tests.integration.conftest import Pool
from tests.integration.two_nodes import TwoNodes, two_nodes

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[2]
CHANGED = "pool/plural.py"
SAYS_ITS_CODE = '''    def code(self) -> str:
        """Which code this node runs; see `code_digest`."""
        return self._code
'''


@contextmanager
def running(sources: Path) -> Iterator[None]:
    """Processes that are started meanwhile import the product from there."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(sources)
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def other_code(folder: Path, module: str, old: str, new: str) -> Path:
    """The platform's sources with one change."""
    shutil.copytree(ROOT / "platform", folder, ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / "ebbtide" / module
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("nodes")


@pytest.fixture(scope="module")
def nodes(folder: Path) -> Iterator[TwoNodes]:
    with two_nodes(folder, machines=("ours",)) as made:
        with running(other_code(folder / "later", CHANGED, "\n", "\n# a later version\n")):
            made.add_node("later")
        with running(other_code(folder / "earlier", "agent/node_agent.py", SAYS_ITS_CODE, "")):
            made.add_node("earlier")
        made.up()
        yield made


def refusals(pool: Pool) -> dict[str, str]:
    return {one["name"]: one["why"] for one in pool.status()["notices"] if " is refused: " in one["why"]}


def test_a_node_with_other_code_is_refused_by_name_and_gives_no_slot(nodes: TwoNodes) -> None:
    pool = nodes.pool
    assert pool is not None
    ours, later, earlier = (nodes.node_id(machine) for machine in ("ours", "later", "earlier"))
    deadline_s = time.monotonic() + 60.0
    while set(refusals(pool)) != {later, earlier} or len(pool.status()["slots"]) < 2:
        assert time.monotonic() < deadline_s, pool.status()["notices"]
        time.sleep(0.5)
    found = refusals(pool)
    assert "it runs ebbtide code " in found[later] and "install the same there" in found[later]
    assert "it runs another version of ebbtide, or none" in found[earlier]
    time.sleep(3.0)  # some rounds more
    assert {slot["node"] for slot in pool.status()["slots"]} == {ours}


def test_a_node_on_which_the_same_code_is_installed_is_taken_in_by_itself(nodes: TwoNodes, folder: Path) -> None:
    pool = nodes.pool
    assert pool is not None
    shutil.copy(ROOT / "platform" / "ebbtide" / CHANGED, folder / "later" / "ebbtide" / CHANGED)
    later = nodes.node_id("later")
    deadline_s = time.monotonic() + HUNG_S + 60.0
    while sum(slot["node"] == later for slot in pool.status()["slots"]) < 2:
        assert time.monotonic() < deadline_s, pool.status()["notices"]
        time.sleep(0.5)
    assert later not in refusals(pool)
