"""What `ebbtide plan` shows, and what a running pool refuses."""

from typing import Any

from ebbtide_autoscaler.changes import changes, conflicts


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
