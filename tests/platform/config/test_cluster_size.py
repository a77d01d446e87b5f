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


@pytest.mark.parametrize(
    ("bounds", "more", "words"),
    [
        ("nodes_max: 2, node_gpus: 2", "replicas: {min: 5, max: 5}", "replicas that always run need 5 slots"),
        ("nodes_max: 2, node_gpus: 2", "replicas: {min: 4, max: 50}", ""),
        ("nodes_max: 2, node_gpus: 2, reserve: 4", "replicas: {min: 0, max: 1}", "reserve is 4"),
    ],
)
def test_minima_are_held_against_all_nodes_that_there_may_ever_be(
    tmp_path: Path, bounds: str, more: str, words: str
) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text(
        f"pool: {{name: demo, {JOINED}shared_dir: shared, {bounds}}}\nendpoints: [{{name: a, model: m:1, {more}}}]\n"
    )
    try:
        load(path)
        found = ""
    except ConfigErrors as errors:
        found = str(errors)
    assert words in found and bool(words) == bool(found)


def test_cpus_that_never_suffice_are_refused_with_a_number_that_does(tmp_path: Path) -> None:
    def told(cpus: int) -> str:
        path = tmp_path / "pool.yaml"
        path.write_text(
            f"pool: {{name: demo, shared_dir: shared, slots: 4, num_cpus: {cpus}}}\n"
            "endpoints: [{name: a, model: m:1, replicas: {min: 1, max: 1}, cpus_per_replica: 2}]\n"
            'jobs: [{name: lm, entrypoint: "a:b", workers: {min: 3, max: 3}, global_batch: 3, micro_batch: 1}]\n'
        )
        try:
            load(path)
        except ConfigErrors as errors:
            return str(errors)
        return ""

    assert told(5) == "" and "pool.num_cpus" in told(4) and "write 5 or more" in told(4)
