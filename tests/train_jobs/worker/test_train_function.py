"""The author's function as it is found, and what is said of one that cannot be run."""

from collections.abc import Callable
from pathlib import Path

import pytest
from ray import cloudpickle

from ebbtide_train.pool_trainer import job_section
from ebbtide_train.session.errors import SessionMisuse
from ebbtide_train.worker.job_plan import JobPlan
from ebbtide_train.worker.train_function import load_function, train_function


def plan_of(function: Callable[..., object]) -> JobPlan:
    section = job_section("job", workers=1, global_batch=1)
    return JobPlan(section=section, incarnation="i", shared_dir="/", lock_dir="/", train=cloudpickle.dumps(function))


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    monkeypatch.syspath_prepend(tmp_path)

    def write(name: str, code: str) -> None:
        (tmp_path / f"{name}.py").write_text(code)

    return write


def test_a_module_that_imports_one_that_is_not_there_is_not_called_missing_itself(
    module: Callable[[str, str], None],
) -> None:
    module("lacks", "import numpyy\ndef train(args): ...\n")
    with pytest.raises(ModuleNotFoundError, match="No module named 'numpyy'"):
        load_function("lacks:train")
    module("looks", "import os\nos.no_such_thing\ndef train(args): ...\n")
    with pytest.raises(AttributeError, match="no_such_thing"):
        load_function("looks:train")


def test_what_is_not_there_is_named(module: Callable[[str, str], None]) -> None:
    module("there", "def train(args): ...\nnumber = 3\n")
    for path, says in (
        ("nowhere_at_all:train", "names no function: No module named 'nowhere_at_all'"),
        ("there:tain", "names no function: module 'there' has no attribute 'tain'"),
        ("there.deeper:train", "names no function"),
        ("there:number", "names no function but a int"),
    ):
        with pytest.raises(ValueError, match=says):
            load_function(path)


@pytest.mark.parametrize(
    "function", [lambda: None, lambda a, b: None, lambda *, args: None, lambda args, *, steps: None]
)
def test_a_function_that_cannot_be_called_with_args_is_refused_with_the_remedy(function: Callable[..., object]) -> None:
    with pytest.raises(SessionMisuse, match=r"write `def \S+\(args\):`"):
        train_function(plan_of(function))


@pytest.mark.parametrize(
    "function", [lambda args: 1, lambda args, more=2: 1, lambda *args: 1, lambda a, **more: 1, dict]
)
def test_any_function_that_can_be_called_with_args_is_taken(function: Callable[..., object]) -> None:
    assert train_function(plan_of(function))({}) is not None
