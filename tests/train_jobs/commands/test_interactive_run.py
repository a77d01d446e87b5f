"""`ebbtide run` and `ebbtide sessions`: what is asked for, handed over, followed, listed. Ray is played."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ebbtide.client.cluster_record import ClusterRecord, save_cluster
from ebbtide.client.messages import Lease, SlotRef
from ebbtide.config.sections.sessions_section import SessionsSection
from ebbtide_train.arbiter_client.park_requests import ParkRequests
from ebbtide_train.commands import interactive_run
from ebbtide_train.commands.interactive_run import run_command
from ebbtide_train.commands.interactive_sessions import sessions, sessions_command
from ebbtide_train.interactive.idle_detection.owner_notices import Mail, Webhook
from ebbtide_train.interactive.process_tree.process_env import base_env, slot_env
from ebbtide_train.interactive.session_folder import SessionFolder
from ebbtide_train.submission.interactive_job import FILE_NAME, follow, hand_over
from ebbtide_train.submission.interactive_request import Request
from ebbtide_train.submission.training_job import Submitted
from tests.train_jobs.fake_link import FakeLink

RECORD = ClusterRecord("tide", "127.0.0.1:6000", "http://127.0.0.1:6001", "", "/shared", "")
REQUEST = Request.of(name="lab", command=("jupyter", "lab", "--no-browser"), cwd="/home/ann", owner="ann@example.org")


class FakeService:
    """Takes a session, and looks at its upload as Ray would."""

    def __init__(self, *statuses: str) -> None:
        self.statuses = list(statuses)
        self.given: dict[str, Any] = {}
        self.file = ""

    def submit_job(self, **given: Any) -> str:
        self.given = given
        self.file = (Path(given["runtime_env"]["working_dir"]) / FILE_NAME).read_text()
        return str(given["submission_id"])

    def get_job_status(self, job_id: str) -> str:
        return self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]

    def get_job_logs(self, job_id: str) -> str:
        return ""


def test_what_is_asked_for_arrives_at_the_driver_and_ray_waits_for_its_grace() -> None:
    service = FakeService("PENDING")
    submitted = hand_over(service, REQUEST, RECORD)
    assert Request.from_json(service.file) == REQUEST
    assert service.given["entrypoint"] == f"python -m ebbtide_train.run_interactive {FILE_NAME}"
    assert submitted.submission_id.startswith("lab-") and submitted.job == "lab"
    assert "125" in service.given["runtime_env"]["env_vars"].values(), "its grace of 120 s, and a little"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": "Lab"}, "name"),
        ({"command": ()}, "command"),
        ({"command": ("a\0b",)}, "command"),
        ({"cwd": "here"}, "cwd"),
        ({"host_memory": "much"}, "host_memory"),
        ({"grace_s": 0}, "grace_s"),
        ({"idle_after_s": -1}, "idle_after_s"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(given: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Request.of(**{"name": "lab", "command": ("true",), "cwd": "/", **given})


def test_the_pools_file_completes_the_plan_and_the_command_goes_before_it() -> None:
    from ebbtide_train.run_interactive import plan_of  # with Ray Train: a second, and only here

    text = '{"idle_after_s": 600, "webhook": "http://h/x", "smtp": {"host": "m", "sender": "p@q"}}'
    pool = SessionsSection.model_validate_json(text)
    plan = plan_of(REQUEST, pool)
    assert (plan.spec.idle.idle_after_s, plan.spec.idle.warn_before_s) == (600.0, 300.0)
    assert [type(way) for way in plan.ways] == [Webhook, Mail]
    assert plan_of(REQUEST.model_copy(update={"idle_after_s": 0.0}), pool).spec.idle.idle_after_s is None
    with pytest.raises(ValueError, match="warn_before_s"):
        plan_of(REQUEST.model_copy(update={"idle_after_s": 100.0}), pool)
    assert plan_of(REQUEST, SessionsSection()).ways == ()


def test_to_the_pool_it_is_a_job_of_one_worker_that_parks_in_place() -> None:
    from ebbtide_train.pool_trainer import job_section
    from ebbtide_train.run_interactive import job_settings

    spec = job_section(**job_settings(REQUEST)).spec()
    assert (spec.workers_min, spec.workers_max, spec.in_place, spec.owner) == (1, 1, True, "ann@example.org")
    assert (spec.grace_s, spec.min_runtime_s, spec.host_bytes_per_worker) == (120.0, 0.0, 1 << 20)


def test_it_is_a_stranger_to_the_cluster_that_it_runs_on() -> None:
    worker = {"PATH": "/bin", "RAY_AUTH_TOKEN": "t", "EBBTIDE_JOB": "x", "RANK": "0", "HOME": "/h", "MASTER_PORT": "1"}
    assert base_env(worker) == {"PATH": "/bin", "HOME": "/h"}
    assert slot_env(Lease("lab", 3, (SlotRef("n", 1, "GPU-abc"),)))["CUDA_VISIBLE_DEVICES"] == "GPU-abc"
    assert slot_env(Lease("lab", 3, (SlotRef("n", 1, "m-1"),)))["CUDA_VISIBLE_DEVICES"] == "1"


def test_following_copies_what_it_prints_to_its_very_end(tmp_path: Path) -> None:
    output, states = tmp_path / "output.log", ["running", "running", "ended"]
    written: list[bytes] = []
    output.write_bytes(b"")

    def status() -> dict[str, Any]:
        with output.open("ab") as file:
            file.write(b"more\n")
        now = states.pop(0) if len(states) > 1 else states[0]
        return {
            "jobs": [{"job": "lab", "state": now, "slots": ["n:0"], "outcome": "finished: well", "since_at_s": 9e9}]
        }

    said: list[str] = []
    naps: list[float] = []
    submitted = Submitted("lab", "lab-1", 1.0)
    link = FakeLink(status=status)
    now = follow(
        FakeService("RUNNING"), link, submitted, output, write=written.append, say=said.append, sleep=naps.append
    )
    assert now.state == "ended" and b"".join(written) == output.read_bytes() == b"more\n" * 3
    assert said == ["session lab: running on 1 slot", "session lab: ended: finished: well"]


def test_wishes_are_those_of_a_person_and_a_refusal_is_no_error() -> None:
    heard: list[tuple[object, ...]] = []

    def take(*args: object) -> dict[str, Any]:
        heard.append(args)
        return {"changed": True}

    def refuse(*_args: object) -> None:
        raise ValueError("it is over")

    wishes = ParkRequests(FakeLink(park_job=take, resume_job=refuse), "lab")
    assert wishes.park("idle for 600 s") and heard == [("lab", "idle for 600 s", "session lab")]
    assert not wishes.resume("touched") and not ParkRequests(FakeLink(), "lab").park("nobody answers")


def test_sessions_are_listed_from_their_files_also_while_nobody_answers(tmp_path: Path) -> None:
    place = SessionFolder(tmp_path / "train" / "lab")
    place.make()
    place.write("standing", {"session": "lab", "state": "parked", "owner": "ann", "command": ["a", "b"], "images": 2})
    (tmp_path / "train" / "job" / "ckpt").mkdir(parents=True)  # a training job is no session
    damaged = SessionFolder(tmp_path / "train" / "damaged")
    damaged.make()
    (damaged.folder / "standing.json").write_text("{")
    (alone,) = sessions(tmp_path, None)
    assert (alone["session"], alone["state"], alone["command"], alone["images"]) == ("lab", "parked", "a b", 2)
    view = {"job": "lab", "state": "resuming", "slots": ["n:0"], "waits": None}
    (told,) = sessions(tmp_path, {"jobs": [view]})
    assert told["state"] == "resuming"
    assert list(sessions(tmp_path / "nothing", None)) == []


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeService:
    monkeypatch.setenv("EBBTIDE_HOME", str(tmp_path / "home"))
    save_cluster(ClusterRecord("tide", "127.0.0.1:6000", "http://x", "", str(tmp_path), ""))
    service = FakeService("RUNNING", "SUCCEEDED")
    busy: dict[str, Any] = {"job": "busy", "state": "running", "slots": [], "outcome": None}
    monkeypatch.setattr(interactive_run, "join", lambda _record: None)
    monkeypatch.setattr(interactive_run, "_service", lambda _record: service)
    monkeypatch.setattr(interactive_run, "ArbiterLink", lambda: FakeLink(status=lambda: {"jobs": [busy]}))
    return service


def test_the_commands_own_options_are_its_own(played: FakeService) -> None:
    done = CliRunner().invoke(run_command, ["--name", "lab", "jupyter", "--name", "x", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(played.file)["command"] == ["jupyter", "--name", "x", "--json"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gpus", "2", "true"], "one GPU"),
        (["--name", "Bad Name", "true"], "name"),
        (["--name", "busy", "true"], "is running already"),
        (["--pool", "nowhere", "true"], "nowhere"),
        ([], "COMMAND"),
    ],
)
def test_misuse_submits_nothing(played: FakeService, words: list[str], said: str) -> None:
    refused = CliRunner().invoke(run_command, words)
    assert refused.exit_code == 2 and said in refused.output, refused.output
    assert played.file == ""


def test_without_a_pool_there_are_no_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EBBTIDE_HOME", str(tmp_path))
    assert CliRunner().invoke(sessions_command, []).exit_code == 2


def test_a_keeper_and_its_warden_need_neither_ray_nor_torch() -> None:
    program = (
        "import sys, ebbtide_train.interactive.supervision.session_supervisor\n"
        "import ebbtide_train.interactive.process_tree.watchdog\n"
        "assert not {'ray', 'torch', 'psutil'} & set(sys.modules), 'too much'"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
