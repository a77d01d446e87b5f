"""The bounds of a pool's size in the file: what is refused, and with which words."""

from pathlib import Path

import pytest

from ebbtide.config.errors import ConfigErrors
from ebbtide.config.loading.pool_file_loader import load

JOINED = 'ray_address: "10.0.0.1:6379", '


def problems(tmp_path: Path, bounds: str, *, address: str = JOINED, gateway: str = "{}") -> list[str]:
    path = tmp_path / "pool.yaml"
    path.write_text(f"pool: {{name: demo, {address}shared_dir: shared, {bounds}}}\ngateway: {gateway}\n")
    try:
        load(path)
    except ConfigErrors as errors:
        return [str(one).partition("pool.yaml:")[2] for one in errors.problems]
    return []


def test_bounds_that_fit_together_are_taken_and_none_are_needed(tmp_path: Path) -> None:
    assert problems(tmp_path, "nodes_min: 2, nodes_max: 8, node_gpus: 4") == []
    assert problems(tmp_path, "reserve: 0", gateway="{per_node: true}") == []


@pytest.mark.parametrize(
    ("bounds", "changes", "place", "words"),
    [
        ("nodes_min: 3, nodes_max: 2, node_gpus: 4", {}, "pool.nodes_min", "nodes_min is 3, and nodes_max is 2"),
        ("nodes_max: 2", {}, "pool.nodes_max", "nodes_max needs node_gpus"),
        ("nodes_max: 2, node_gpus: 4", {"address": ""}, "pool.nodes_max", "only a cluster that is joined"),
        ("nodes_max: 2, node_gpus: 4", {"gateway": "{per_node: true}"}, "gateway.per_node", "keeps Ray from ever"),
        ("nodes_max: 0, node_gpus: 4", {}, "pool.nodes_max", "must be greater than or equal to 1"),
        ("nodes_max: 2, node_gpus: 4, nodes_idle_after_s: 0", {}, "pool.nodes_idle_after_s", "greater than 0"),
    ],
)
def test_bounds_that_contradict_each_other_are_named(
    tmp_path: Path, bounds: str, changes: dict[str, str], place: str, words: str
) -> None:
    (found,) = problems(tmp_path, bounds, **changes)
    assert place in found and words in found
