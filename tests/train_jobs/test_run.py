"""``python -m ebbtide_train.run`` up to the pool's door, and what stands there when there is no pool."""

from pathlib import Path

import pytest
import ray
from click.testing import CliRunner
from ray.train import TrainingFailedError

from ebbtide_train import run
from ebbtide_train.arbiter_client.pool_connection import ask, connect
from ebbtide_train.errors import BadJob, NoArbiter
from ebbtide_train.pool_trainer import job_section
from ebbtide_train.run import main
from ebbtide_train.session.errors import Cancelled
from tests.train_jobs.fake_link import FakeLink

FILE = """
pool: {{name: tide}}
jobs:
  - {{name: one, entrypoint: "{entrypoint}", working_dir: ../{name},
      workers: {{max: 1}}, global_batch: 1, micro_batch: 1}}
"""


@pytest.fixture
def no_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which no pool was ever brought up."""
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    for name in ("RAY_ADDRESS", "EBBTIDE_RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EBBTIDE_HOME", str(tmp_path / "home"))
    (tmp_path / "mine.py").write_text("def train(args): ...\n")
    return tmp_path


def ran(folder: Path, entrypoint: str, *more: str) -> tuple[int, str]:
    (folder / "job.yaml").write_text(FILE.format(entrypoint=entrypoint, name=folder.name))
    result = CliRunner().invoke(main, [str(folder / "job.yaml"), *more])
    return result.exit_code, result.output


def test_a_wrong_file_is_refused_with_its_line(no_pool: Path) -> None:
    code, printed = ran(no_pool, "no colon")
    assert code == 2
    assert "job.yaml:4:" in printed


def test_a_train_function_that_is_not_there_is_refused(no_pool: Path) -> None:
    code, printed = ran(no_pool, "mine:tain")
    assert code == 2
    assert "defines no 'tain'" in printed and "'train'" in printed


def test_the_working_dir_on_the_command_line_counts(no_pool: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    code, printed = ran(no_pool, "mine:train", "--working-dir", str(tmp_path_factory.mktemp("empty")))
    assert code == 2
    assert "no module 'mine'" in printed


def test_without_a_pool_it_says_how_to_start_one(no_pool: Path) -> None:
    code, printed = ran(no_pool, "mine:train")
    assert code == 1
    assert "ebbtide up" in printed


def test_a_dead_address_is_told_at_once(no_pool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # nobody listens on port 1
    with pytest.raises(NoArbiter, match=r"127\.0\.0\.1:1 .*ebbtide up FILE"):
        connect()


def test_an_arbiter_that_restarts_is_waited_for_and_one_that_is_not_there_is_not() -> None:
    answers = [None, None, "here"]
    assert ask(FakeLink(hello=lambda: answers.pop(0)), "hello") == "here"
    with pytest.raises(NoArbiter, match="ebbtide up FILE"):
        ask(FakeLink(), "hello", timeout_s=0.0)


def test_settings_are_those_of_a_job_in_a_file() -> None:
    section = job_section("mine", workers=(1, 3), global_batch=100, priority=4, host_memory_per_worker="1 MiB")
    assert (section.workers.min, section.workers.max, section.micro_batch, section.priority) == (1, 3, 64, 4)
    assert section.host_memory_per_worker == 2**20
    assert job_section("mine", workers=2, global_batch=4).workers.min == 2


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"workers": (3, 1), "global_batch": 6}, "workers.max: max is 1, less than min"),
        ({"workers": 8, "global_batch": 6}, "global_batch: .*some workers would have no sample"),
        ({"workers": 1, "global_batch": 6, "prioritty": 3}, "prioritty: Extra inputs"),
    ],
)
def test_contradicting_settings_are_refused(settings: dict[str, object], says: str) -> None:
    with pytest.raises(BadJob, match=says):
        job_section("mine", **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [TrainingFailedError("a page"), Cancelled("by me")])
def test_a_job_that_did_not_finish_ends_with_1_and_what_its_driver_said_last_is_not_said_again(
    no_pool: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    class Trainer:
        def __init__(self, *_: object, **__: object) -> None:
            """Nothing to keep."""

        def fit(self) -> None:
            print("ebbtide: job one: failed: rank 0: ValueError: no loss (mine.py:3)")
            raise error

    monkeypatch.setattr(run, "PoolTrainer", Trainer)
    assert ran(no_pool, "mine:train") == (1, "ebbtide: job one: failed: rank 0: ValueError: no loss (mine.py:3)\n")
