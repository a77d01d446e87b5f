"""What Ray's autoscaler is asked for: each node that stays by its id, each that is to come by its label."""

import pytest

from ebbtide.pool.events import NodeDraining
from ebbtide.pool.ids import NodeId
from ebbtide.pool.rules.drain import UNNEEDED
from ebbtide_autoscaler.cluster import resource_request
from ebbtide_autoscaler.cluster.node_names import ELASTIC_LABEL
from ebbtide_autoscaler.cluster.resource_request import NODE_LABEL, request_of, send
from ebbtide_autoscaler.cluster.size import DesiredSize
from tests.builders.policy import a_pool, fold

N0, N1, N2 = NodeId("n0"), NodeId("n1"), NodeId("n2")
STATE = a_pool(nodes={"n0": 2, "n1": 4, "n2": 2})
NEW = (8, {ELASTIC_LABEL: "true"})


def here(node: NodeId, gpus: int) -> tuple[int, dict[str, str]]:
    return gpus, {NODE_LABEL: str(node)}


def a_wish(*, new: int = 0, going: tuple[NodeId, ...] = (), back: tuple[NodeId, ...] = ()) -> DesiredSize:
    return DesiredSize(3 + new, new, going, back, (), "r")


def test_every_node_that_stays_is_named_with_all_its_gpus_and_the_new_ones_are_not() -> None:
    assert request_of(a_wish(new=2), STATE, {N0: 2, N1: 4}, 8) == (here(N0, 2), here(N1, 4), NEW, NEW)


def test_a_node_that_goes_is_not_asked_for_and_one_that_is_taken_back_is() -> None:
    elastic = {N0: 2, N1: 4, N2: 2}
    state = fold(STATE, NodeDraining(N1, f"{UNNEEDED}r"), NodeDraining(N2, "a disk"))
    assert request_of(a_wish(going=(N0,)), state, elastic, 8) == (here(N2, 2),), "a person's drain is the person's"
    assert request_of(a_wish(back=(N1,)), state, elastic, 8) == (here(N0, 2), here(N1, 4), here(N2, 2))


def test_a_node_that_the_pool_does_not_know_yet_answers_for_a_new_one() -> None:
    """Named beside the new one that was asked for it would be one too many."""
    assert request_of(a_wish(new=1), STATE, {N0: 2, NodeId("just-joined"): 8}, 8) == (here(N0, 2), NEW)


def test_a_request_reaches_ray_as_bundles_with_their_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[list[dict[str, int]], list[dict[str, str]]]] = []

    def request_resources(*, bundles: list[dict[str, int]], bundle_label_selectors: list[dict[str, str]]) -> None:
        sent.append((bundles, bundle_label_selectors))

    monkeypatch.setattr(resource_request, "request_resources", request_resources)
    monkeypatch.setattr(resource_request, "is_autoscaler_v2", lambda: True)
    send((here(N0, 2), NEW))
    assert sent == [([{"GPU": 2}, {"GPU": 8}], [{NODE_LABEL: "n0"}, {ELASTIC_LABEL: "true"}])]
    monkeypatch.setattr(resource_request, "is_autoscaler_v2", lambda: False)
    with pytest.raises(RuntimeError, match="RAY_enable_autoscaler_v2=1"):
        send((NEW,))
    send(())
    assert sent[1:] == [([], [])], "to take a request back is never in vain"
