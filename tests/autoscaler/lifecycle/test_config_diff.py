"""What `ebbtide plan` shows, and what a running pool refuses."""

from typing import Any

import pytest

from ebbtide_autoscaler.lifecycle.config_diff import changes, conflicts


def a_file(**pool: Any) -> dict[str, Any]:
    return {
        "pool": {"name": "p", "slots": 3, "reserve": 0, **pool},
        "gateway": {"host": "127.0.0.1", "port": 8000, "hold": {"max_age_s": 120}},
        "policy": {"tick_s": 0.1},
        "endpoints": [{"name": "chat", "model": "/m", "slo": {"ttft_s": 2.0}}],
        "keys": [],
    }


def test_without_a_running_pool_everything_is_new() -> None:
    assert [str(change) for change in changes(None, a_file())] == [
        "+ pool p with 3 slots",
        "+ gateway on 127.0.0.1:8000",
        "+ endpoints.chat",
    ]


def test_the_same_file_changes_nothing() -> None:
    assert changes(a_file(), a_file()) == ()


def test_nested_fields_are_named_by_their_path() -> None:
    after = a_file(reserve=1)
    after["endpoints"][0]["slo"]["ttft_s"] = 1.0
    assert [str(change) for change in changes(a_file(), after)] == [
        "~ pool.reserve: 0 -> 1",
        "~ endpoints.chat.slo.ttft_s: 2.0 -> 1.0",
    ]


def test_endpoints_come_and_go_by_name() -> None:
    after = a_file()
    after["endpoints"] = [{"name": "code", "model": "/m"}]
    assert [str(change) for change in changes(a_file(), after)] == ["- endpoints.chat", "+ endpoints.code"]


def test_what_a_running_pool_cannot_take_is_a_conflict() -> None:
    found = changes(a_file(), a_file(slots=4))
    assert [str(change) for change in conflicts(found)] == ["! pool.slots: 3 -> 4"]


@pytest.mark.parametrize(
    ("section", "field", "before", "after", "effect"),
    [
        ("gateway", "per_node", False, True, "replaces the gateway; running streams may end within 30 s"),
        ("gateway", "tls", None, {"cert": "c"}, "replaces the gateway; running streams may end within 30 s"),
        ("gateway", "tls", {"cert": "c"}, {"cert": "d"}, "replaces the gateway; running streams may end within 30 s"),
        ("gateway", "max_connections", 10, 20, "counts from the gateway's next start"),
        ("gateway", "hold", {"max_age_s": 1}, {"max_age_s": 2}, "restarts nothing"),
        ("metrics", "port", 0, 9100, "restarts nothing"),
    ],
)
def test_what_is_changed_of_gateway_and_metrics_is_shown_with_its_effect(
    section: str, field: str, before: object, after: object, effect: str
) -> None:
    old, new = a_file(), a_file()
    old[section] = {**old.get(section, {}), field: before}
    new[section] = {**new.get(section, {}), field: after}
    (change,) = changes(old, new)
    assert change.path.startswith(f"{section}.{field}") and change.effect == effect


@pytest.mark.parametrize(
    ("field", "value", "effect"),
    [
        ("slo", {"ttft_s": 1.0}, "restarts nothing"),
        ("replicas", {"min": 1}, "restarts nothing"),
        ("warm", {"replicas": 1}, "counts from each replica's next start"),
        ("model", "/other", "rolls replicas, one at a time"),
        ("engine", {"dtype": "bfloat16"}, "rolls replicas, one at a time"),
        ("gpus_per_replica", 2, "replaces all replicas; requests are held meanwhile"),
    ],
)
def test_each_change_says_what_it_restarts(field: str, value: object, effect: str) -> None:
    after = a_file()
    after["endpoints"][0][field] = value
    assert {change.effect for change in changes(a_file(), after)} == {effect}


def test_a_name_with_dots_and_nested_engine_arguments_do_not_hide_a_roll() -> None:
    before, after = a_file(), a_file()
    for file, value in ((before, 1), (after, 2)):
        file["endpoints"] = [{"name": "chat.v2", "engine": {"deep": {"slo": value}}}]
    (change,) = changes(before, after)
    assert (change.path, change.effect) == ("endpoints.chat.v2.engine.deep.slo", "rolls replicas, one at a time")


def test_other_sections_restart_nothing_and_a_conflict_needs_down() -> None:
    after = a_file(reserve=1, slots=4, mode="observe")
    after["keys"] = [{"name": "a"}]
    after["endpoints"] = []
    found = {change.path: change.effect for change in changes(a_file(mode="manage"), after)}
    assert found == {
        "pool.reserve": "restarts nothing",
        "pool.slots": "needs down",
        "pool.mode": "nothing is moved any more",
        "keys.a": "restarts nothing",
        "endpoints.chat": "drains its replicas; new requests get 404 at once",
    }
