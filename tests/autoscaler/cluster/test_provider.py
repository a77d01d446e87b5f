"""The external node provider as Ray's autoscaler uses it: by way of the adapter that autoscaler v2 wraps it in."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from ray.autoscaler._private.providers import _get_node_provider
from ray.autoscaler.v2.instance_manager.config import AutoscalingConfig
from ray.autoscaler.v2.instance_manager.node_provider import LaunchNodeError, NodeProviderAdapter
from ray.core.generated.instance_manager_pb2 import NodeKind

from ebbtide_autoscaler.cluster.machines import Machine, MachineOrder
from ebbtide_autoscaler.cluster.provider import INSTANCE, NODE_TYPE, PoolNodeProvider

FILE: dict[str, Any] = {
    "cluster_name": "pool",
    "max_workers": 4,
    "provider": {
        "type": "external",
        "module": "ebbtide_autoscaler.cluster.provider.PoolNodeProvider",
        "machines": f"{__name__}:Rack",
        "machines_config": {"rack": 7},
        "disable_node_updaters": True,
    },
    "head_node_type": "head",
    "available_node_types": {
        "head": {"resources": {"CPU": 2}, "node_config": {}, "max_workers": 0},
        "gpu": {
            "resources": {"CPU": 4, "GPU": 8},
            "labels": {"ebbtide.io/elastic": "true"},
            "node_config": {"sku": "h200"},
            "min_workers": 0,
            "max_workers": 4,
        },
    },
    "setup_commands": [],
    "head_setup_commands": [],
    "worker_setup_commands": [],
    "cluster_synced_files": [],
}


class Rack:
    """A rack of machines that take a moment to start."""

    orders: list[MachineOrder]
    fail: Exception | None

    def __init__(self, settings: Mapping[str, Any], cluster_name: str) -> None:
        assert (settings, cluster_name) == ({"rack": 7}, "pool")
        type(self).orders, type(self).fail = [], None
        self._running: set[str] = set()

    def there(self) -> Sequence[Machine]:
        return [Machine(order.id, order.tags, order.id in self._running) for order in self.orders]

    def start(self, order: MachineOrder) -> None:
        if self.fail is not None:
            raise self.fail
        self.orders.append(order)

    def stop(self, machine: str) -> None:
        type(self).orders = [order for order in self.orders if order.id != machine]

    def come_up(self) -> None:
        self._running |= {order.id for order in self.orders}


class Reader:
    def get_cached_autoscaling_config(self) -> AutoscalingConfig:
        return AutoscalingConfig(FILE, skip_content_hash=True)


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> PoolNodeProvider:
    monkeypatch.setenv(INSTANCE, "the-head")
    monkeypatch.delenv(NODE_TYPE, raising=False)
    found = _get_node_provider(FILE["provider"], "pool", use_cache=False)
    assert isinstance(found, PoolNodeProvider)
    return found


@pytest.fixture
def adapter(provider: PoolNodeProvider) -> NodeProviderAdapter:
    return NodeProviderAdapter(provider, Reader())


def until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_a_launch_orders_machines_that_know_who_they_are(adapter: NodeProviderAdapter) -> None:
    adapter.launch({"gpu": 2}, "request-1")
    until(lambda: len(Rack.orders) == 2)
    first, second = Rack.orders
    assert first.id != second.id
    assert first.environment == {"RAY_CLOUD_INSTANCE_ID": first.id, "RAY_NODE_TYPE_NAME": "gpu"}
    assert first.resources == {"CPU": 4, "GPU": 8} and first.labels == {"ebbtide.io/elastic": "true"}
    assert first.node_config == {"sku": "h200"}


def test_ray_sees_the_head_and_each_machine_from_its_order_on(
    adapter: NodeProviderAdapter, provider: PoolNodeProvider
) -> None:
    assert list(adapter.get_non_terminated()) == ["the-head"]
    assert adapter.get_non_terminated()["the-head"].node_kind == NodeKind.HEAD
    adapter.launch({"gpu": 1}, "request-1")
    until(lambda: len(Rack.orders) == 1)
    name = Rack.orders[0].id
    found = adapter.get_non_terminated()[name]
    assert (found.node_type, found.request_id, found.is_running) == ("gpu", "request-1", False)
    assert found.node_kind == NodeKind.WORKER
    provider._machines.come_up()  # type: ignore[attr-defined]
    assert adapter.get_non_terminated()[name].is_running
    adapter.terminate([name], "request-2")
    until(lambda: not Rack.orders)
    assert list(adapter.get_non_terminated()) == ["the-head"] and provider.is_terminated(name)


def test_a_machine_that_cannot_be_had_is_told_to_ray(adapter: NodeProviderAdapter) -> None:
    Rack.fail = OSError("the rack is full")
    adapter.launch({"gpu": 1}, "request-1")
    errors: list[Any] = []

    def told() -> bool:
        errors.extend(adapter.poll_errors())
        return bool(errors)

    until(told)
    assert isinstance(errors[0], LaunchNodeError) and "the rack is full" in repr(errors[0])


def test_the_head_is_never_ended(provider: PoolNodeProvider) -> None:
    with pytest.raises(ValueError, match="head"):
        provider.terminate_node("the-head")


def test_a_head_that_does_not_say_who_it_is_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(INSTANCE, raising=False)
    assert PoolNodeProvider(FILE["provider"], "pool").non_terminated_nodes({}) == []


@pytest.mark.parametrize("place", ["", "nowhere:Rack", f"{__name__}:Nobody", "no colon"])
def test_an_adapter_that_is_not_there_is_named(place: str) -> None:
    with pytest.raises(ValueError, match=r"expected package\.module:Class"):
        PoolNodeProvider({"machines": place}, "pool")
