"""The policy as Serve would call it: counts in, replicas out."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from ebbtide_autoscaler.integrations.ray_serve_policy import ServePolicy
from ebbtide_autoscaler.process.steady_clock import SteadyClock

CHAT, EMBED = "app#chat", "app#embed"
NAMED: Mapping[str, Mapping[str, Any]] = {
    "chat": {"target_requests": 4, "priority": 1, "down_after_s": 5.0, "idle_after_s": 10.0},
    "embed": {},
}


@dataclass
class Told:
    deployment_name: str
    total_num_requests: float = 0.0
    target_num_replicas: int = 0
    capacity_adjusted_min_replicas: int = 0
    capacity_adjusted_max_replicas: int = 4


class Served:
    """Serve's loop: it does what it is told, at once."""

    def __init__(self, gpus: int = 8, named: Mapping[str, Mapping[str, Any]] = NAMED) -> None:
        self.now_s = 1_000_000.0
        self.policy = ServePolicy(gpus, named, clock=lambda: self.now_s)
        self.told = {CHAT: Told("chat"), EMBED: Told("embed", capacity_adjusted_min_replicas=1), "app#x": Told("x")}

    def run(self, seconds: float) -> tuple[int, int]:
        for _ in range(round(seconds * 10)):
            self.now_s += 0.1
            counts, _ = self.policy(self.told)
            assert set(counts) == {CHAT, EMBED}, "others are left alone"
            for name, count in counts.items():
                self.told[name].target_num_replicas = count
        return self.told[CHAT].target_num_replicas, self.told[EMBED].target_num_replicas


def test_replicas_follow_what_is_asked_for_and_go_when_nobody_asks() -> None:
    serve = Served()
    assert serve.run(3.0) == (0, 1)
    serve.told[CHAT].total_num_requests = 9.0
    assert serve.run(0.1) == (3, 1)
    serve.told[CHAT].total_num_requests = 0.0
    assert serve.run(4.0)[0] == 3
    assert serve.run(30.0) == (0, 1)


def test_together_they_have_no_more_gpus_than_there_are_and_the_important_one_goes_first() -> None:
    serve = Served(gpus=3)
    serve.told[CHAT].total_num_requests = 100.0
    serve.told[EMBED].total_num_requests = 100.0
    assert serve.run(3.0) == (2, 1), "the least number of the other one is kept"


def test_a_deployment_without_gpus_takes_none_from_the_others() -> None:
    serve = Served(gpus=2, named={"chat": {"target_requests": 4, "gpus_per_replica": 0, "priority": 1}, "embed": {}})
    serve.told[CHAT].total_num_requests = serve.told[EMBED].total_num_requests = 16.0
    assert serve.run(3.0) == (4, 2), "with GPUs for two, as many as its own bounds allow"


def test_a_clock_that_is_set_back_keeps_no_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    serve = Served()
    passed_s, set_by_s = 0.0, 1_000_000.0
    machines = partial(SteadyClock, lambda: passed_s + set_by_s, lambda: passed_s)
    monkeypatch.setattr("ebbtide_autoscaler.integrations.ray_serve_policy.SteadyClock", machines)
    serve.policy = ServePolicy(8, NAMED)

    def run(seconds: int) -> int:
        nonlocal passed_s
        for _ in range(10 * seconds):
            passed_s += 0.1
            counts, _ = serve.policy({CHAT: serve.told[CHAT]})
            serve.told[CHAT].target_num_replicas = counts[CHAT]
        return counts[CHAT]

    serve.told[CHAT].total_num_requests = 9.0
    assert run(3) == 3
    set_by_s -= 3600.0
    serve.told[CHAT].total_num_requests = 0.0
    assert run(60) == 0


def test_a_field_that_is_not_known_is_refused() -> None:
    with pytest.raises(ValueError, match="target_request"):
        ServePolicy(8, {"chat": {"target_request": 4}})


def test_the_old_name_works_and_says_what_the_new_one_is() -> None:
    with pytest.warns(FutureWarning, match=r"ebbtide_autoscaler\.integrations\.ray_serve_policy"):
        old = importlib.reload(importlib.import_module("ebbtide_autoscaler.serve_native"))
    assert old.ServePolicy is ServePolicy
