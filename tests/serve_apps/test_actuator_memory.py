"""What the actuator remembers saves work and is never believed: Serve may have been restarted since."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import ray.serve
from ray.serve.schema import ApplicationStatus, ApplicationStatusOverview, ServeStatus

from ebbtide.client.seat_actuator import SeatPlan
from ebbtide.pool.ids import EndpointName, SeatId
from ebbtide_serve import actuator
from ebbtide_serve.actuator import GATEWAY_APP, SPREAD_APP, ServeActuator
from ebbtide_serve.errors import SeatRefused

SEAT = SeatId("m/0")
APP = "seat-m-0"


class Serve:
    """Serve as the actuator sees it: applications with a target, and replica actors."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.targets: dict[str, int] = {}
        self.nodes: dict[str, str | None] = {}  # label of the application's replica
        self.gpus: dict[str, float | None] = {}  # that its replica takes of Ray's
        self.actors: dict[str, list[str]] = {}
        self.deployed: list[str] = []
        self.options: list[dict[str, Any]] = []
        self.leaving: set[str] = set()
        self.deleted: set[str] = set()  # asked for, and not yet looked at by the controller
        self.well = True
        monkeypatch.setattr(actuator, "set_replicas", self.set_replicas)
        monkeypatch.setattr(actuator, "replica_actors", lambda: self.actors)
        monkeypatch.setattr(actuator, "_is_well", lambda app: self.well and app in self.targets)
        monkeypatch.setattr(ray.serve, "start", lambda **_: None)
        monkeypatch.setattr(ray.serve, "status", self.status)
        monkeypatch.setattr(ray.serve, "delete", self.delete)
        monkeypatch.setattr(ray.serve, "run_many", self.run_many)

    def set_replicas(self, app: str, deployment: str, number: int) -> bool:
        if app in self.targets:
            self.targets[app] = number
        return app in self.targets

    def run_many(self, targets: list[Any], **_: Any) -> None:
        for target in targets:
            options = target.target._bound_deployment
            self.options.append(
                {"replicas": options.num_replicas, "per_node": options._replica_config.max_replicas_per_node}
            )
            label = (options.ray_actor_options or {}).get("label_selector")
            self.nodes[target.name] = label and label[actuator.NODE_LABEL]
            self.gpus[target.name] = (options.ray_actor_options or {}).get("num_gpus")
            self.deployed.append(target.name)
            self.targets[target.name] = 1

    def status(self) -> ServeStatus:
        found = {
            app: ApplicationStatusOverview(ApplicationStatus(status), "", 0.0, {})
            for app, status in (
                {app: "RUNNING" for app in self.targets} | dict.fromkeys(self.leaving, "DELETING")
            ).items()
        }
        return ServeStatus(applications=found)

    def delete(self, app: str, _blocking: bool) -> None:
        assert not _blocking
        self.deleted.add(app)

    def forget(self) -> None:
        """The controller dies with what it was told last."""
        self.deleted = set()

    def turn(self) -> None:
        """The controller's next turn."""
        self.leaving, self.deleted = self.leaving | self.deleted, set()

    def left(self) -> None:
        for app in self.leaving:
            del self.targets[app]
            self.actors.pop(app, None)
        self.leaving = set()

    def restart(self) -> None:
        """As `serve shutdown` does: nothing is left."""
        self.targets, self.actors = {}, {}


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Serve:
    return Serve(monkeypatch)


def plan(node: str = "n1", **other: Any) -> SeatPlan:
    words: dict[str, Any] = {"slots": 1, "node": node, "token": "t", "cache_dir": "", "model": ""} | other
    return SeatPlan(seat=SEAT, endpoint=EndpointName("m"), **words)


async def test_a_replica_is_bound_to_the_node_of_its_grant(serve: Serve) -> None:
    await ServeActuator().open_seat(plan("n1"))
    assert serve.nodes == {APP: "n1"}
    await ServeActuator().open_seat(plan(""))
    assert serve.nodes == {APP: None}


async def test_a_known_seat_is_only_scaled_and_for_another_node_deployed_anew(serve: Serve) -> None:
    hands = ServeActuator()
    await hands.open_seat(plan("n1"))
    await hands.close_seat(SEAT)
    await hands.open_seat(plan("n1"))
    assert (serve.deployed, serve.targets) == ([APP], {APP: 1})
    await hands.close_seat(SEAT)
    await hands.open_seat(plan("n2"))
    assert (len(serve.deployed), serve.nodes) == (2, {APP: "n2"})


async def test_while_the_replica_of_another_node_is_leaving_the_seat_is_refused_and_stays_closed(serve: Serve) -> None:
    hands = ServeActuator()
    await hands.open_seat(plan("n1"))
    serve.actors = {APP: ["leaving"]}
    with pytest.raises(SeatRefused, match="its replica on node n1 has not left yet"):
        await hands.open_seat(plan("n2"))
    assert (len(serve.deployed), serve.targets) == (1, {APP: 0})
    serve.actors = {}
    await hands.open_seat(plan("n2"))
    assert serve.nodes == {APP: "n2"}


async def test_a_replica_that_may_park_takes_no_gpu_of_rays(serve: Serve) -> None:
    hands = ServeActuator()
    await hands.open_seat(plan(fenced=True))
    assert serve.gpus == {APP: 0}
    serve.actors = {APP: ["leaving"]}
    with pytest.raises(SeatRefused):
        await hands.open_seat(plan())
    serve.actors = {}
    await hands.open_seat(plan())
    assert serve.gpus == {APP: 1}


async def test_a_living_replica_is_never_replaced_even_by_an_arbiter_that_has_restarted(serve: Serve) -> None:
    await ServeActuator().open_seat(plan("n1"))
    serve.actors = {APP: ["lives"]}
    await ServeActuator().open_seat(plan("n1", engine_args={"other": 1}))
    assert serve.deployed == [APP]


@pytest.mark.parametrize("loss", ["restart", "given up"])
async def test_what_serve_has_lost_is_deployed_again(serve: Serve, loss: str) -> None:
    hands = ServeActuator()
    await hands.open_seat(plan())
    if loss == "restart":
        serve.restart()
    else:
        serve.well = False
    await hands.open_seat(plan())
    assert serve.deployed == [APP, APP]


async def test_every_call_is_sent_whatever_was_sent_before(serve: Serve) -> None:
    """A target that somebody else has moved is moved back."""
    hands = ServeActuator()
    await hands.open_seat(plan())
    await hands.close_seat(SEAT)
    serve.targets[APP] = 1
    await hands.close_seat(SEAT)
    assert serve.targets == {APP: 0}
    await ServeActuator().close_seat(SeatId("never/0"))  # nothing is there, and that is what was wanted


def settings(**other: Any) -> str:
    return json.dumps({"internal_token": "t", "host": "127.0.0.1", "port": 1, "endpoints": []} | other)


async def test_the_gateway_is_deployed_again_when_serve_has_lost_it_and_only_then(serve: Serve) -> None:
    hands = ServeActuator()
    await hands.start_gateway(settings())
    serve.actors = {GATEWAY_APP: ["g"]}
    await hands.start_gateway(settings())
    assert serve.deployed == [GATEWAY_APP]
    serve.restart()
    await hands.start_gateway(settings())
    assert serve.deployed == [GATEWAY_APP] * 2


@pytest.mark.parametrize("per_node", [False, True])
async def test_a_gateway_that_is_leaving_is_not_taken_for_one_to_be_updated(serve: Serve, per_node: bool) -> None:
    """As after `down` and `up` at once, perhaps of another file."""
    serve.leaving.add(GATEWAY_APP)
    hands = ServeActuator()
    for _ in range(2):
        with pytest.raises(SeatRefused, match="has not left yet"):
            await hands.start_gateway(settings(per_node=per_node))
    assert serve.deployed == []
    serve.leaving.clear()
    await hands.start_gateway(settings(per_node=per_node))
    assert serve.deployed == [SPREAD_APP if per_node else GATEWAY_APP]


async def test_gateways_that_share_a_port_come_once_the_one_that_did_not_has_left(serve: Serve) -> None:
    hands = ServeActuator()
    await a_gateway_runs(hands, serve)
    with pytest.raises(SeatRefused, match="has not left yet"):
        await hands.start_gateway(settings(per_node=True))
    for turned in (False, True, True):  # Serve's status says RUNNING until its controller's turn
        if turned:
            serve.turn()
        with pytest.raises(SeatRefused, match="has not left yet"):
            await hands.start_gateway(settings(per_node=True))
    assert serve.deployed == [GATEWAY_APP] and serve.leaving == {GATEWAY_APP}
    serve.left()
    for _ in range(2):
        await hands.start_gateway(settings(per_node=True, replicas=2))
        serve.actors = {SPREAD_APP: ["g"]}
    assert serve.deployed == [GATEWAY_APP, SPREAD_APP] and not serve.leaving


async def a_gateway_runs(hands: ServeActuator, serve: Serve, **other: Any) -> str:
    """Gives the application's name."""
    await hands.start_gateway(settings(**other))
    app = serve.deployed[-1]
    serve.actors[app] = ["g"]
    return app


@pytest.mark.parametrize("per_node", [False, True])
@pytest.mark.parametrize("dies", ["before it acts", "while they leave", "when they have left", "when others came"])
async def test_an_arbiter_that_starts_amid_a_change_of_the_kind_carries_it_through(
    serve: Serve, per_node: bool, dies: str
) -> None:
    """What the one before knew is lost; what Serve runs is there to be seen."""
    old = await a_gateway_runs(ServeActuator(), serve, per_node=not per_node)
    wanted = settings(per_node=per_node)
    first = ServeActuator()
    if dies != "before it acts":
        with pytest.raises(SeatRefused):
            await first.start_gateway(wanted)
        serve.turn()
    if dies in ("when they have left", "when others came"):
        serve.left()
    if dies == "when others came":
        await a_gateway_runs(first, serve, per_node=per_node)

    second = ServeActuator()
    if old in serve.targets:
        for _ in range(2):
            with pytest.raises(SeatRefused, match="has not left yet"):
                await second.start_gateway(wanted)
            serve.turn()
        assert serve.deployed == [old] and serve.leaving == {old}
        serve.left()
    new = await a_gateway_runs(second, serve, per_node=per_node)
    assert {old, new} == {GATEWAY_APP, SPREAD_APP} and set(serve.targets) == {new}
    number = len(serve.deployed)
    await second.start_gateway(wanted)
    assert len(serve.deployed) == number, "and then rests"


async def test_a_change_of_the_kind_that_is_taken_back_waits_for_the_gateway_that_leaves(serve: Serve) -> None:
    """It serves until its streams end, and looks as if it were there."""
    hands = ServeActuator()
    await a_gateway_runs(hands, serve, per_node=False)
    for per_node in (True, False, False):
        with pytest.raises(SeatRefused, match="has not left yet"):
            await hands.start_gateway(settings(per_node=per_node))
        serve.turn()
    serve.left()
    await hands.start_gateway(settings(per_node=False))
    assert serve.deployed == [GATEWAY_APP] * 2


async def test_gateways_of_the_other_kind_that_turn_up_beside_the_right_ones_are_seen(serve: Serve) -> None:
    hands = ServeActuator()
    await a_gateway_runs(hands, serve, per_node=True)
    serve.targets[GATEWAY_APP], serve.actors[GATEWAY_APP] = 1, ["somebody's"]
    with pytest.raises(SeatRefused):
        await hands.start_gateway(settings(per_node=True))
    assert serve.deleted == {GATEWAY_APP}


async def test_a_deletion_that_serves_controller_has_not_heard_is_sent_again(serve: Serve) -> None:
    hands = ServeActuator()
    await a_gateway_runs(hands, serve)
    for per_node in (True, True, False):  # the last wants back what it has deleted: that may have been heard
        with pytest.raises(SeatRefused):
            await hands.start_gateway(settings(per_node=per_node))
        assert serve.deleted == {GATEWAY_APP}
        serve.forget()


async def test_a_pool_that_is_taken_down_leaves_no_gateway_of_either_kind(serve: Serve) -> None:
    for per_node in (False, True):
        serve.targets = dict.fromkeys([await a_gateway_runs(ServeActuator(), serve, per_node=per_node), "another's"], 1)
        await ServeActuator().stop()
        serve.turn()
        assert "another's" not in serve.leaving
        serve.left()
        assert list(serve.targets) == ["another's"]
        serve.targets = {}


async def test_gateways_are_as_many_as_nodes_and_one_on_each(serve: Serve) -> None:
    hands = ServeActuator()
    for number in (1, 2, 3, 2):
        await hands.start_gateway(settings(replicas=number))
        serve.actors = {GATEWAY_APP: ["g"]}
    assert [one["replicas"] for one in serve.options] == [1, 2, 3, 2]
    assert {one["per_node"] for one in serve.options} == {1}


async def test_a_call_that_hangs_is_given_up_and_living_goes_on(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    gate = threading.Event()
    hang: Callable[..., bool] = lambda *_: gate.wait(30)  # noqa: E731 - typed
    monkeypatch.setattr(actuator, "set_replicas", hang)
    monkeypatch.setattr(actuator, "SERVE_S", 0.1)
    hands = ServeActuator()
    with pytest.raises(TimeoutError):
        await hands.close_seat(SEAT)
    serve.actors = {APP: ["lives"]}
    assert await hands.living() == {SEAT: ("lives",)}
    with pytest.raises(TimeoutError):
        await hands.open_seat(plan())
    gate.set()
