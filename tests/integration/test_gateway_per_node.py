"""A gateway on each node: a change of that in a running pool, nodes that join and die. A cluster of its own."""

from collections.abc import Iterator

import pytest

from tests.integration.conftest import Pool
from tests.integration.test_two_nodes import ask
from tests.integration.two_nodes import TwoNodes, two_nodes, wait_dead

# Short: tests/autoscaler/test_gateway_keeper.py without processes.
pytestmark = [pytest.mark.ray, pytest.mark.hunt, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoNodes]:
    with two_nodes(tmp_path_factory.mktemp("nodes")) as made:
        yield made


def test_each_node_has_a_gateway_when_asked_and_so_has_one_that_joins(nodes: TwoNodes) -> None:
    pool = nodes.up(per_node="false")
    pool.wait("a gateway with a port of its own", lambda: gateways(pool) == 1)
    pool = nodes.up(per_node="true")  # the first has to leave before two can share the port
    pool.wait("a gateway on each node and the head", lambda: gateways(pool) == 3)
    pool.wait("each node has its own", lambda: all(has_gateway(nodes, machine) for machine in ("a", "b")))
    nodes.add_node("c")
    pool.wait("one more", lambda: gateways(pool) == 4 and has_gateway(nodes, "c"))
    wait_dead(nodes, nodes.kill_node("c"))
    pool.wait("one less", lambda: gateways(pool) == 3)
    assert {ask(f"{pool.record.gateway_url}/v1/completions") for _ in range(10)} == {200}, "whichever accepts"
    pool.check_promises()


def gateways(pool: Pool) -> int:
    return sum(gateway["heard_s_ago"] < 1 for gateway in pool.status()["gateways"])


def has_gateway(nodes: TwoNodes, machine: str) -> bool:
    return len(nodes.processes(machine, "ray::ServeReplica:ebbtide-gateway")) == 1
