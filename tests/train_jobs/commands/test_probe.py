"""`ebbtide probe`: for people, for programs, and what it refuses without touching anything."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ebbtide.cli.main import cli
from ebbtide.client.cluster_join import ClusterUnreachable
from ebbtide.client.cluster_record import ClusterRecord, save_cluster
from ebbtide.diagnostics.probe.node_reading import NodeAsk, NodeReading
from ebbtide.diagnostics.probe.probe_report import ProbeReport
from ebbtide.diagnostics.probe.rehearsal import Act
from ebbtide.snapshot.tiers import Rates, Tier
from ebbtide_train.commands import probe as module

NODES = ["ab" * 28, "cd" * 28]
GIB = 1 << 30


def job(name: str, state: str, nodes: list[str], **changes: object) -> dict[str, Any]:
    return {
        "job": name,
        "state": state,
        "slots": [f"{node}:{index}" for index, node in enumerate(nodes)],
        "pids": {str(index): 100 + index for index in range(len(nodes))},
        "workers_min": 1,
        "in_place": True,
        "grace_s": 30.0,
        "host_bytes_per_worker": GIB,
        "tracked_bytes": 0,
        "in_place_hindered": None,
        "step": 20,
        "durable_step": 10,
        "step_s": 0.5,
        "outcome": None,
        **changes,
    }


STATUS: dict[str, Any] = {
    "pool": "p",
    "jobs": [
        job("runs", "running", NODES),
        job("parked", "parked", NODES[:1]),
        job("waits", "waiting", []),
        job("careful", "running", NODES[:1], in_place=False),
        job("measured", "running", NODES[1:], slots=[f"{NODES[1]}:1"], tracked_bytes=GIB // 8),
        job("sharded", "running", NODES[1:], slots=[f"{NODES[1]}:1"], in_place_hindered="it is sharded by FSDP"),
        job("over", "ended", [], outcome="finished"),
        job("notebook", "running", NODES[:1]),
    ],
    "endpoints": [{"endpoint": "chat", "seats": [{"seat": "chat/0"}]}],
    "slots": [
        {"slot": f"{NODES[0]}:0", "node": NODES[0], "foreign": None},
        {"slot": f"{NODES[1]}:1", "node": NODES[1], "foreign": None},
        {"slot": f"{NODES[1]}:2", "node": NODES[1], "foreign": "actor of somebody"},
    ],
    "nodes": [
        {"node": NODES[0], "host_bytes": 4 * GIB, "parked_bytes": 4 * GIB},
        {"node": NODES[1], "host_bytes": 4 * GIB, "parked_bytes": 0},
    ],
}
FILE = """
pool: {name: p, shared_dir: shared, host_memory_per_node: 2 GiB}
jobs:
  - {name: small, entrypoint: "m:f", workers: {max: 2}, global_batch: 8, micro_batch: 4}
  - {name: large, entrypoint: "m:f", workers: {min: 2, max: 2}, global_batch: 8, micro_batch: 4,
     host_memory_per_worker: 1.5 GiB}
"""


def probe(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["probe", *arguments])


class Asked:
    """What nodes were asked, and what they say."""

    def __init__(self) -> None:
        self.asks: dict[str, NodeAsk] = {}
        self.silent: set[str] = set()

    def read_there(self, node: str, ask: NodeAsk) -> NodeReading | str:
        self.asks[node] = ask
        if node in self.silent:
            return f"node {node[:8]} did not answer"
        return NodeReading(f"host-{node[:2]}", 64 * GIB, 500 * GIB, 0, GIB, Rates(), ())


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module, "runtime_dir", lambda pool: tmp_path / "run" / pool)
    monkeypatch.setattr(module, "helper_socket", lambda pool: tmp_path / "run" / "helper.sock")
    monkeypatch.setenv("EBBTIDE_HOME", str(tmp_path / "home"))
    return tmp_path / "run" / "p"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "pool.yaml"
    path.write_text(FILE)
    return path


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    save_cluster(ClusterRecord("p", "127.0.0.1:1", "", "", str(tmp_path / "shared"), ""))
    asked = Asked()
    monkeypatch.setattr(module, "join", lambda _record: None)
    monkeypatch.setattr(module, "read_there", asked.read_there)
    answers(monkeypatch, STATUS)
    return asked


def answers(monkeypatch: pytest.MonkeyPatch, status: dict[str, Any] | None) -> None:
    class Link:
        def call(self, method: str, timeout_s: float) -> dict[str, Any] | None:
            assert method == "status"  # nothing else may be asked of the arbiter
            return status

    monkeypatch.setattr(module, "ArbiterLink", Link)


def report(*arguments: str) -> ProbeReport:
    result = probe(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return ProbeReport.model_validate_json(result.stdout)


def test_a_running_job_is_read_on_each_of_its_nodes_with_the_pids_of_its_ranks(pool: Asked) -> None:
    found = report("runs")
    assert {node: ask.pids for node, ask in pool.asks.items()} == {NODES[0]: {0: 100}, NODES[1]: {1: 101}}
    assert {ask.world for ask in pool.asks.values()} == {2}
    assert [node.choice for node in found.nodes] == [Tier.STOP_AND_RESTART, Tier.EVICT_AND_CUDA]
    assert found.choice is Tier.STOP_AND_RESTART
    lines = {line.tier: line for line in found.nodes[0].tiers}
    assert "0 kB are left of the budget" in lines[Tier.EVICT_AND_CUDA].why_not[0].what
    assert lines[Tier.KILL].lost_s == 5.0


def test_what_a_running_job_has_measured_counts_and_not_what_it_declared(pool: Asked) -> None:
    [node] = report("measured").nodes
    assert {line.tier: line.ram_bytes for line in node.tiers}[Tier.EVICT_AND_CUDA] == GIB // 8
    assert {fact.id: fact.value for fact in node.facts}["job.tracked"] == GIB // 8


def test_what_hinders_a_running_job_is_said_with_the_way_that_holds(pool: Asked) -> None:
    found = report("sharded")
    assert found.choice is Tier.STOP_AND_RESTART
    [why] = {line.tier: line.why_not for line in found.nodes[0].tiers}[Tier.EVICT_AND_CUDA]
    assert "sharded by FSDP" in why.what and "stops and restarts" in why.remedy


def test_what_a_parked_job_has_counts_as_its_own(pool: Asked) -> None:
    assert report("parked").choice is Tier.EVICT_AND_CUDA


def test_a_job_that_waits_is_judged_on_every_node_it_could_get(pool: Asked) -> None:
    found = report("waits")
    assert [node.node for node in found.nodes] == NODES and [node.workers for node in found.nodes] == [1, 1]


def test_a_job_that_does_not_want_to_park_in_place_is_told_so(pool: Asked) -> None:
    found = report("careful")
    assert found.nodes[0].tiers[0].why_not[0].remedy == "remove in_place: false"


def test_a_session_is_read_by_the_leader_of_its_tree_and_not_by_its_keeper(pool: Asked, tmp_path: Path) -> None:
    folder = tmp_path / "shared" / "train" / "notebook" / "session"
    folder.mkdir(parents=True)
    assert report("notebook").kind == "session" and pool.asks[NODES[0]].pids == {}
    (folder / "leader.json").write_text('{"pid": 77, "started": 5}')
    found = report("notebook")
    assert pool.asks[NODES[0]].is_session and pool.asks[NODES[0]].pids == {0: 77}
    assert found.nodes[0].tiers[3].why_not and found.nodes[0].tiers[5].lost_s is None
    (folder / "leader.json").write_text("half a fi")
    result = probe("notebook")
    assert result.exit_code == 1 and "leader.json is damaged" in result.stderr


def test_people_get_a_sentence_a_table_and_what_would_mend_it(pool: Asked) -> None:
    result = probe("runs")
    assert result.exit_code == 0 and result.stderr == ""
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    assert lines[0].startswith("job runs on 2 nodes: stop and restart: slots free after")
    assert "host-ab abababab: 1 worker, processes 100" in lines
    assert any(line.startswith("* stop and restart") for line in lines)
    assert any("-> raise pool.host_memory_per_node" in line for line in lines)
    assert any("Not measured here: memcpy_out" in line for line in lines)


def test_a_node_that_does_not_answer_is_exit_code_1_and_the_others_are_told(pool: Asked) -> None:
    pool.silent = {NODES[1]}
    result = probe("runs")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[0] == "node cdcdcdcd did not answer" and "* stop and restart" in result.stdout


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nobody", "there is no job or session nobody in this pool"),
        ("over", "over has ended: finished"),
        ("chat", "chat is served: what its replicas do when they leave (they drain, then park if"),
        ("chat/0", "chat/0 is served"),
        ("actor of somebody", "actor of somebody is none of this pool's"),
    ],
)
def test_what_cannot_be_probed_is_one_line_and_exit_code_2(pool: Asked, runtime: Path, name: str, told: str) -> None:
    result = probe(name)
    assert (result.exit_code, result.stdout) == (2, "")
    assert told in result.stderr and len(result.stderr.strip().splitlines()) == 1
    assert pool.asks == {} and not runtime.exists()


def test_a_refused_workload_is_not_rehearsed_for(pool: Asked, runtime: Path) -> None:
    assert probe("over", "--rehearse").exit_code == 2
    assert not runtime.exists()


def test_without_a_pool_the_way_out_is_named() -> None:
    result = probe("runs")
    assert result.exit_code == 2 and "ebbtide probe FILE:JOB" in result.stderr


@pytest.mark.parametrize("status", [None, {"pool": "p"}])
def test_an_arbiter_that_does_not_answer_is_exit_code_1(
    pool: Asked, monkeypatch: pytest.MonkeyPatch, status: dict[str, Any] | None
) -> None:
    answers(monkeypatch, status)
    result = probe("runs")
    assert result.exit_code == 1 and "the arbiter does not answer" in result.stderr


def test_a_cluster_that_is_gone_is_exit_code_1(pool: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    def join(_record: object) -> None:
        raise ClusterUnreachable("nobody answers at 127.0.0.1:1")

    monkeypatch.setattr(module, "join", join)
    result = probe("runs")
    assert result.exit_code == 1 and "nobody answers at 127.0.0.1:1" in result.stderr


def test_a_job_of_a_file_is_judged_on_this_machine(file: Path, runtime: Path) -> None:
    found = report(f"{file}:small")
    assert (found.state, found.pool, found.choice) == ("in a file", "p", Tier.EVICT_AND_CUDA)
    ids = {fact.id for fact in found.nodes[0].facts}
    assert {"gpu.devices", "ram.available", "ram.shm", "disk.free", "criu.ray_worker", "job.host_memory"} <= ids
    assert all(fact.where and (fact.remedy or not fact.hinders) for fact in found.nodes[0].facts)
    assert not runtime.exists() and not (file.parent / "shared").exists()


def test_the_budget_of_the_file_counts(file: Path) -> None:
    found = report(f"{file}:large")
    assert "2.15 GB are left of the budget" in found.nodes[0].tiers[0].why_not[0].what


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["{file}:none"], "the file has no job 'none'; it has small, large"),
        (["{file}.none:small"], "cannot be read: No such file"),
        ([f"{NODES[0]}:0"], "cannot be read: No such file"),
        (["{file}:small", "--pool", "q"], "is of pool p, not of q"),
        (["{file}:small", "--bytes", "1GB"], "it needs --rehearse"),
        (["{file}:small", "--rehearse", "--bytes", "500TB"], "ask for less"),
        (["{file}:small", "--rehearse", "--bytes", "4096"], "would show nothing"),
        ([], "Missing argument"),
    ],
)
def test_bad_input_is_exit_code_2_and_changes_nothing(
    file: Path, runtime: Path, arguments: list[str], told: str
) -> None:
    result = probe(*(argument.format(file=file) for argument in arguments))
    assert (result.exit_code, result.stdout) == (2, "")
    assert told in result.stderr
    assert not runtime.exists() and not (file.parent / "shared").exists()


def test_a_file_that_only_submits_takes_the_budget_of_its_pools_own_file(tmp_path: Path, file: Path) -> None:
    alone = tmp_path / "job.yaml"
    alone.write_text(FILE.replace(", shared_dir: shared, host_memory_per_node: 2 GiB", ""))
    assert "only submits jobs to pool p" in probe(f"{alone}:large").stderr
    save_cluster(ClusterRecord("p", "127.0.0.1:1", "", "", str(tmp_path / "shared"), str(file)))
    found = report(f"{alone}:large")
    assert "2.15 GB are left of the budget" in found.nodes[0].tiers[0].why_not[0].what


Acts = Callable[..., tuple[Act, ...]]


@pytest.mark.parametrize(("failed", "code"), [(False, 0), (True, 1)])
def test_a_rehearsal_is_told_and_a_failed_one_is_exit_code_1(
    file: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch, failed: bool, code: int
) -> None:
    asked: list[object] = []

    def rehearse(*arguments: object) -> tuple[Act, ...]:
        asked.extend(arguments[:3])
        return (Act("evict", "it went so", failed=failed),)

    monkeypatch.setattr(module, "rehearse", rehearse)
    result = probe(f"{file}:small", "--rehearse", "--bytes", "16MiB", "--json")
    assert result.exit_code == code
    assert json.loads(result.stdout)["rehearsal"] == [{"name": "evict", "words": "it went so", "failed": failed}]
    assert asked == [16 << 20, str(file.parent / "shared"), runtime]
    assert "Rehearsed, evict: it went so" in probe(f"{file}:small", "--rehearse").stdout


def test_what_was_measured_is_reckoned_with_and_a_damaged_file_is_told(file: Path, runtime: Path) -> None:
    runtime.mkdir(parents=True)
    rates = runtime / "rates.json"
    rates.write_text('{"version": 1, "rates": {"memcpy_out": {"bytes_per_s": 1e8, "origin": "a slow day"}}}')
    node = report(f"{file}:small").nodes[0]
    assert node.tiers[0].free_s == pytest.approx(GIB / 1e8, rel=0.01)
    assert [rate.origin for rate in node.rates if rate.measured] == ["a slow day"]
    rates.write_text("damaged")
    node = report(f"{file}:small").nodes[0]
    assert node.tiers[0].free_s < 1
    assert "it is no JSON" in next(fact.what for fact in node.facts if fact.id == "rates.file")
