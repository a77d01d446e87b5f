"""Reading one node as a whole, and the helper's own word."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

from ebbtide.diagnostics.probe.helper_facts import ask_helper
from ebbtide.diagnostics.probe.node_reading import NodeAsk, NodeReading, read_node
from ebbtide.snapshot.tiers import Means
from tests.builders.helper import Processes
from tests.platform.diagnostics import machines


def ask(tmp_path: Path, *pids: int, session: bool = False) -> NodeAsk:
    return NodeAsk(
        pids=dict(enumerate(pids)),
        world=len(pids),
        is_session=session,
        shared_dir=str(tmp_path),
        runtime_dir=str(tmp_path / "run"),
        helper=str(tmp_path / "helper.sock"),
    )


def ids(found: NodeReading) -> set[str]:
    return {fact.id for fact in found.facts}


def test_question_and_answer_can_travel_between_nodes(tmp_path: Path) -> None:
    asked = ask(tmp_path, os.getpid())
    assert pickle.loads(pickle.dumps(asked)) == asked
    found = read_node(asked)
    assert pickle.loads(pickle.dumps(found)) == found
    assert found.process_bytes > 1 << 20 and found.disk_free_bytes
    assert list(tmp_path.iterdir()) == []


def test_a_rank_that_has_ended_takes_every_means_away(tmp_path: Path) -> None:
    found = read_node(ask(tmp_path, os.getpid(), 2**22 + 1))
    (gone,) = (fact for fact in found.facts if fact.id == "process.gone")
    assert gone.hinders == set(Means) and "rank 1 (process 4194305)" in gone.what


def test_a_job_without_gpus_needs_no_helper_and_a_session_does(tmp_path: Path) -> None:
    assert {"helper", "criu.program"} & ids(read_node(ask(tmp_path))) == set()
    found = read_node(ask(tmp_path, session=True))
    assert {"helper", "criu.program"} <= ids(found) and "criu.ray_worker" not in ids(found)
    (helper,) = (fact for fact in found.facts if fact.id == "helper")
    assert helper.hinders == {Means.DRIVER, Means.CRIU}
    assert helper.remedy.endswith(f"python -m ebbtide.helper --socket {tmp_path}/helper.sock")


def test_a_job_with_gpus_needs_one(tmp_path: Path) -> None:
    found = read_node(ask(tmp_path), machines.h200_with_nvidia_fs(tmp_path / "root"))
    assert found.gpus and "helper" in ids(found)


def test_ranks_of_a_job_keep_nvls_off_by_themselves_and_other_processes_do_not(tmp_path: Path) -> None:
    machine = machines.h200_with_nvidia_fs(tmp_path / "root")
    proc = Processes(tmp_path / "root")
    for pid in (10, 20):
        proc.process(pid, 1, environ="A=1")
    for session in (False, True):
        found = read_node(ask(tmp_path, 10, 20, session=session), machine)
        (nvls,) = (fact for fact in found.facts if fact.id == "nccl.nvls")
        assert bool(nvls.hinders) is session


def test_a_helper_that_answers_says_what_its_driver_and_its_criu_can_do(tmp_path: Path) -> None:
    socket = tmp_path / "helper.sock"
    (criu := tmp_path / "criu").write_text("#!/bin/sh\necho Version: 3.17\n")
    criu.chmod(0o755)
    command = [sys.executable, "-m", "ebbtide_testing.gpu_driver", "--socket", str(socket), "--criu", str(criu)]
    helper = subprocess.Popen(
        [*command, "--fake-driver", str(tmp_path / "driver.json")], stdout=subprocess.PIPE, text=True
    )
    try:
        assert helper.stdout is not None
        assert helper.stdout.readline().startswith("ready")
        said, fact = ask_helper(str(socket))
    finally:
        helper.kill()
        helper.communicate()
    assert not fact.hinders and said.driver is not None and said.driver.can_checkpoint
    assert said.criu == "" and "3.17" in said.why_not_criu
    assert ask_helper(str(socket))[0].driver is None
