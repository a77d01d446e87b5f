"""The order in which vLLM leaves its GPU and comes back, and what it says where it cannot. No vLLM, no GPU."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ebbtide.client.messages import Lease, SlotRef
from ebbtide.helper.errors import OutcomeUnknown, Undone, Unreachable
from ebbtide_serve.engine.sleep import CanSleep
from ebbtide_serve.errors import EngineFailed
from ebbtide_serve.process.lease_env import EngineLease
from ebbtide_serve.vllm.sleep_mode import REST_BYTES, VllmSleep, sleep_of, why_never

LEASE = EngineLease(Lease("chat/0", 9, (SlotRef("n", 1),)), Path("/locks"), None)
SLEEP = ["ebbtide_rank", "sleep 1", "checkpoint_prepare", "register", "lock", "checkpoint", "ebbtide_leave_slot"]
WAKE = ["ebbtide_take_slot 9", "restore", "unlock", "checkpoint_restore", "wake_up"]


class Both:
    """vLLM and the helper; ``calls`` is what was asked of either, ``failing`` the call that raises."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.failing: dict[str, Exception] = {}
        self.why_not = ""

    def _note(self, call: str) -> None:
        self.calls.append(call)
        if call in self.failing:
            raise self.failing[call]

    async def sleep(self, level: int) -> None:
        self._note(f"sleep {level}")

    async def collective_rpc(self, method: str, args: tuple[object, ...] = ()) -> Any:
        self._note(" ".join([method, *(str(json.loads(str(one))["lease"]["epoch"]) for one in args)]))
        return [{"pid": 7, "started": 8, "weight_bytes": 100}]

    def facts(self) -> dict[str, Any]:
        self._note("facts")
        return {"driver": {"why_not_checkpoint": self.why_not}}

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        if verb in ("wake_up", "checkpoint_prepare", "checkpoint_restore"):

            async def engine() -> None:
                self._note(verb)

            return engine
        return lambda *_: self._note(verb)


async def test_the_slot_is_left_last_and_taken_first() -> None:
    both = Both()
    sleep = VllmSleep(both, both)
    await sleep.sleep()
    assert both.calls == SLEEP
    both.calls.clear()
    await sleep.wake(LEASE)
    assert both.calls == WAKE


@pytest.mark.parametrize("verb", ["register", "lock", "checkpoint", "restore", "unlock"])
@pytest.mark.parametrize("kind", [Undone, OutcomeUnknown])
async def test_a_driver_that_fails_is_the_engines_end_and_the_slot_is_never_left(verb: str, kind: type[Undone]) -> None:
    both = Both()
    both.failing = {verb: kind("what", "remedy")}
    sleep = VllmSleep(both, both)
    with pytest.raises(EngineFailed):
        await (sleep.wake(LEASE) if verb in ("restore", "unlock") else sleep.sleep())
    assert both.calls[-1] == verb, "nothing is asked after it"


async def test_it_says_what_it_needs_and_why_it_cannot() -> None:
    both = Both()
    assert await VllmSleep(both, both).look() == CanSleep(100 + REST_BYTES)
    both.why_not = "MIG is on"
    assert "MIG is on" in (await VllmSleep(both, both).look()).why_not
    both.failing = {"facts": Unreachable("no helper answers", "start it")}
    assert "no helper answers" in (await VllmSleep(both, both).look()).why_not


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"is_cpu": True, "ranks": 1, "started_so": False}, "cpu"),
        ({"is_cpu": False, "ranks": 2, "started_so": True}, "NCCL"),
        ({"is_cpu": False, "ranks": 1, "started_so": False}, "without vLLM's sleep mode"),
        ({"is_cpu": False, "ranks": 1, "started_so": True}, ""),
    ],
)
async def test_where_it_never_can(how: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EBBTIDE_LEASE", raising=False)
    assert why in why_never(**how)
    found, can = await sleep_of(Both(), **how)
    assert found is None and (why or "no lease") in can.why_not
