"""The model of a gateway keeps to the contract of the real one: orders that name nothing change nothing."""

from random import Random
from typing import Any

from ebbtide.client.messages import GatewayOrders, GatewayReport, KeyGrant, RoutingTable, SeatRoute
from ebbtide_testing.cluster.fake_cluster import FakeCluster
from ebbtide_testing.cluster.fake_gateway import FakeGateway
from ebbtide_testing.cluster.fake_link import FakeLink, Weather
from ebbtide_testing.cluster.virtual_clock import VirtualClock

TABLE = RoutingTable(7, {"chat": (SeatRoute("chat/0", "chat/0#0", "chat/0#0"),)})
KEY = KeyGrant(name="team", sha256="0" * 64, scopes=("models", "generate"))


class Orders:
    """An arbiter that only knows what to tell gateways."""

    def __init__(self) -> None:
        self.orders = GatewayOrders()
        self.reports: list[GatewayReport] = []

    def report_gateway(self, report: GatewayReport) -> GatewayOrders:
        self.reports.append(report)
        return self.orders


def test_it_obeys_routes_and_keys_says_which_and_keeps_them_when_told_nothing_new() -> None:
    clock, random, arbiter = VirtualClock(), Random(1), Orders()
    link: Any = FakeLink(clock, random, Weather())
    gateway = FakeGateway(FakeCluster(clock, random, link, {}, lambda seat: 1), random, "g0")
    link.arbiter = arbiter
    clock.run_for(1.0)
    assert (arbiter.reports[-1].routes_seen, arbiter.reports[-1].keys_seen) == (0, -1)
    arbiter.orders = GatewayOrders(routes=TABLE, keys_version=3, keys=(KEY,))
    clock.run_for(1.0)
    assert (arbiter.reports[-1].routes_seen, arbiter.reports[-1].keys_seen) == (7, 3)
    arbiter.orders = GatewayOrders(keys_version=3)
    clock.run_for(1.0)
    link.arbiter = None
    clock.run_for(10.0)
    assert gateway.table == TABLE and gateway.keys == (KEY,) and gateway.keys_version == 3
