"""What `status` says stands still: who is silent, since when, and whose freeze it is."""

from dataclasses import replace

from ebbtide.client.messages import AgentReport, GatewayReport
from ebbtide.config.sections.pool_section import PoolMode
from ebbtide.pool.ids import NodeId
from ebbtide.pool.state import PoolState
from ebbtide_autoscaler.core.observe.alerts import Alert, FreezeCause, GatewayContact, Standstill, alerts_of, standstill
from ebbtide_autoscaler.core.observe.observation import Observation, Timestamped

N = NodeId("0123456789abcdef")
STATE = PoolState(nodes={N: 0})


def gateway(at_s: float, name: str = "g") -> Timestamped[GatewayReport]:
    return Timestamped(at_s, GatewayReport(name, N, 0.0, f"http://{name}", 0, {}))


def told(seen: Observation, state: PoolState = STATE, now_s: float = 100.0, **what: object) -> list[Alert]:
    known = {"mode": PoolMode.MANAGE, "mode_since_s": 0.0, "gateway": GatewayContact(), **what}
    return list(alerts_of(state, seen, now_s, **known))  # type: ignore[arg-type]


WELL = Observation(started_s=0.0, gateways={"g": gateway(99.9)}, agents={N: Timestamped(99.5, AgentReport(N, "b", {}))})


def test_nothing_is_said_when_all_goes_on_as_usual() -> None:
    assert told(WELL) == []


def test_a_pool_whose_gateways_are_all_silent_says_which_and_since_when() -> None:
    seen = replace(WELL, gateways={"g": gateway(60.0), "h": gateway(50.0, "h")})
    (notice,) = told(seen, gateway=GatewayContact(last_s=60.0))
    assert (notice.about, notice.since_s) == ("gateway", 60.0)
    assert "signals stopped" in notice.why and "http://g, http://h" in notice.why


def test_gateways_that_were_forgotten_are_still_known_to_be_silent() -> None:
    (notice,) = told(replace(WELL, gateways={}), gateway=GatewayContact(last_s=20.0))
    assert notice.since_s == 20.0
    (never,) = told(replace(WELL, gateways={}))
    assert "no gateway has reported yet" in never.why


def test_one_silent_gateway_of_two_is_named() -> None:
    seen = replace(WELL, gateways={"g": gateway(99.9), "h": gateway(50.0, "h")})
    (notice,) = told(seen)
    assert (notice.name, notice.since_s) == ("h", 50.0) and "the others count" in notice.why


def test_a_silent_agent_is_named_with_its_node() -> None:
    (notice,) = told(replace(WELL, agents={}))
    assert (notice.about, notice.name, notice.since_s) == ("agent", N, 0.0)


def test_a_node_that_runs_other_code_is_refused_by_name_and_not_called_silent() -> None:
    (notice,) = told(replace(WELL, agents={}, refused={N: "it runs another one: install the same"}))
    assert (notice.about, notice.name) == ("node", N)
    assert notice.why.startswith("node 01234567 is refused: it runs another one: install the same there")


def test_draining_nodes_trouble_and_observe_mode_are_said() -> None:
    found = told(
        WELL,
        replace(STATE, draining={N: "new disk"}),
        mode=PoolMode.OBSERVE,
        mode_since_s=7.0,
        gateway=GatewayContact(trouble="RuntimeError: no", trouble_since_s=5.0),
    )
    assert [(notice.about, notice.since_s) for notice in found] == [("mode", 7.0), ("gateway", 5.0), ("node", 0.0)]
    assert "ebbtide undrain 01234567" in found[2].why


def test_the_ledger_comes_before_a_person_and_a_person_before_a_start() -> None:
    frozen = replace(STATE, frozen="counting (me)", frozen_since_s=3.0)
    broken = Standstill("the ledger hangs", 9.0, FreezeCause.LEDGER)
    assert standstill(frozen, broken, 1.0) == broken
    assert standstill(frozen, Standstill(), 1.0) == Standstill("counting (me)", 3.0, FreezeCause.PERSON)
    assert standstill(STATE, Standstill(), 1.0).by is FreezeCause.START
    assert standstill(STATE, Standstill(), 0.0) == Standstill()
