"""``ebbtide down`` of what is down already, and of what never was."""

import json
from pathlib import Path

import pytest

from ebbtide.client.cluster_record import ClusterRecord, forget_cluster, save_cluster
from ebbtide_autoscaler.commands.pool import down
from tests.builders.commands import run


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EBBTIDE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_down_twice_says_that_it_was_so() -> None:
    save_cluster(ClusterRecord("tide", "h:1", "", "", "/s", "/f"))
    forget_cluster("tide")
    named = run(down, "--pool", "tide")
    assert (named.exit_code, named.stdout) == (0, "pool tide is down already\n")
    found = run(down, "--json")
    assert (found.exit_code, json.loads(found.stdout)) == (0, {"pool": None, "down": True, "already": True})


def test_a_pool_that_never_was_is_bad_input_and_a_near_name_is_offered() -> None:
    save_cluster(ClusterRecord("tide", "h:1", "", "", "/s", "/f"))
    done = run(down, "--pool", "tied")
    assert done.exit_code == 2 and "did you mean 'tide'?" in done.stderr
    assert run(down, "--pool", "elsewhere").exit_code == 2


def test_a_record_that_cannot_be_read_is_not_taken_for_a_pool_that_is_down(home: Path) -> None:
    save_cluster(ClusterRecord("tide", "h:1", "", "", "/s", "/f"))
    (home / "tide" / "cluster.json").write_text("{")
    done = run(down)
    assert done.exit_code == 2 and "cannot be read" in done.stderr
