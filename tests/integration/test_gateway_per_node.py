"""A gateway on each node: a change of that in a running pool, nodes that join and die. A cluster of its own."""

import json
import os
import signal
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ebbtide.client.arbiter_link import ArbiterLink
from tests.builders.nodes import ask
from tests.integration.conftest import Pool
from tests.integration.two_nodes import TwoNodes, two_nodes, wait_dead

# Short: what is done about gateways on several nodes, without any, in tests/serve_apps/test_actuator_memory.py.
pytestmark = [pytest.mark.ray, pytest.mark.hunt, pytest.mark.timeout(300)]
TOKENS = 2000  # 20 s at the engine's 100 a second: longer than it takes to kill an arbiter, shorter than a drain


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


@pytest.mark.parametrize(("per_node", "number"), [("false", 1), ("true", 3)])
def test_an_arbiter_that_dies_amid_such_a_change_is_followed_by_one_that_carries_it_through(
    nodes: TwoNodes, per_node: str, number: int
) -> None:
    """A stream keeps a gateway of before, so that the arbiter surely dies in the middle; and it ends as it should."""
    pool = nodes.up(per_node="false" if per_node == "true" else "true")
    pool.wait("gateways", lambda: gateways(pool) == 4 - number)
    begun = threading.Event()
    with ThreadPoolExecutor(1) as user:
        listening = user.submit(listen, f"{pool.record.gateway_url}/v1/completions", begun)
        assert begun.wait(100)
        config = json.loads(pool.ask("config"))
        config["gateway"]["per_node"] = per_node == "true"
        ArbiterLink().handle().apply_config.remote(json.dumps(config))
        pool.wait("the file is in force, and the gateways of before leave", lambda: leaving(pool), limit_s=60)
        pid = pool.status()["arbiter"]["pid"]
        os.kill(pid, signal.SIGKILL)
        assert not listening.done(), "the change was not through"
        pool.wait("another arbiter", lambda: pool.status()["arbiter"]["pid"] != pid)
        assert listening.result(60) == TOKENS
        pool.wait("as many gateways as the file says", lambda: gateways(pool) == number and not leaving(pool))
    if per_node == "true":
        pool.wait("each node has its own", lambda: all(has_gateway(nodes, machine) for machine in ("a", "b")))
    assert {ask(f"{pool.record.gateway_url}/v1/completions") for _ in range(10)} == {200}
    nodes.up(per_node=per_node)
    assert gateways(pool) == number, "the same file again changes nothing"
    pool.check_promises()


def listen(url: str, begun: threading.Event) -> int:
    """Have a long answer streamed; how many words came, if it ended in good order."""
    body = {"model": "tiny", "prompt": "a", "max_tokens": TOKENS, "stream": True}
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    words, last = 0, b""
    with urllib.request.urlopen(request, timeout=100) as reply:
        for line in reply:
            if line.startswith(b"data: "):
                begun.set()
                last = line.removeprefix(b"data: ").strip()
                words += len(_choices(last)) and len(_choices(last)[0]["text"].split())
    assert last == b"[DONE]", last
    return words


def _choices(event: bytes) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [] if event == b"[DONE]" else json.loads(event).get("choices", [])
    return found


def leaving(pool: Pool) -> bool:
    """Whether the arbiter waits for gateways to leave."""
    return any("has not left yet" in notice["why"] for notice in pool.status()["notices"])


def gateways(pool: Pool) -> int:
    """How many take requests: one that leaves is heard until its last stream ends."""
    return sum(gateway["heard_ago_s"] < 1 and not gateway["leaving"] for gateway in pool.status()["gateways"])


def has_gateway(nodes: TwoNodes, machine: str) -> bool:
    return len(nodes.processes(machine, "ray::ServeReplica:ebbtide-gateway")) == 1
