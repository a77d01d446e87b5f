"""The arbiter's port for metrics: opened, moved, refused and tried again, while the loop never waits."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from ebbtide.config.sections.metrics_section import MetricsSection
from ebbtide.telemetry.registry import Metrics
from ebbtide_autoscaler.metrics.exporter import RETRY_S, MetricsExporter

GATEWAY = "http://127.0.0.1:8000"


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def door(tmp_path: Path, clock: Clock) -> Iterator[MetricsExporter]:
    door = MetricsExporter(Metrics([]), tmp_path, clock)
    yield door
    door.close()


def keep_until(door: MetricsExporter, section: MetricsSection, true: Callable[[], bool], *gateways: str) -> None:
    deadline_s = time.monotonic() + 5.0
    while not true():
        assert time.monotonic() < deadline_s, door.status()
        door.keep(section, "demo", gateways)
        time.sleep(0.01)


def targets(tmp_path: Path) -> list[str]:
    path = tmp_path / "metrics-targets.json"
    return [one for group in json.loads(path.read_text()) for one in group["targets"]] if path.exists() else []


def test_it_opens_a_free_port_and_names_it_and_the_gateways(door: MetricsExporter, tmp_path: Path) -> None:
    keep_until(door, MetricsSection(), lambda: len(targets(tmp_path)) == 2, GATEWAY)
    assert httpx.get(door.status()["url"], trust_env=False).status_code == 200
    assert "127.0.0.1:8000" in targets(tmp_path)
    assert door.status()["trouble"] == ""
    keep_until(door, MetricsSection(), lambda: len(targets(tmp_path)) == 1)  # the gateway is gone


def test_a_taken_port_shows_in_status_and_is_tried_again(door: MetricsExporter, tmp_path: Path, clock: Clock) -> None:
    taken = socket.socket()
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    section = MetricsSection(port=taken.getsockname()[1])
    keep_until(door, section, lambda: bool(door.trouble))
    assert "in use" in door.trouble and "metrics.port" in door.trouble
    assert door.url == ""
    taken.close()
    door.keep(section, "demo", ())
    assert door.url == "", "it must not hammer at every tick"
    clock.now_s += RETRY_S
    keep_until(door, section, lambda: bool(targets(tmp_path)))
    assert door.trouble == ""


def test_another_file_moves_the_port_and_disabled_closes_it(door: MetricsExporter, tmp_path: Path) -> None:
    keep_until(door, MetricsSection(), lambda: bool(targets(tmp_path)))
    url = door.url
    keep_until(door, MetricsSection(enabled=False), lambda: not targets(tmp_path))
    assert door.url == ""
    with pytest.raises(httpx.ConnectError):
        httpx.get(url, trust_env=False)


def test_a_token_file_guards_it_and_a_bad_one_opens_nothing(
    door: MetricsExporter, tmp_path: Path, clock: Clock
) -> None:
    file = tmp_path / "token"
    section = MetricsSection(token_file=file)
    keep_until(door, section, lambda: "cannot be read" in door.trouble)
    file.write_text("short\n")
    clock.now_s += RETRY_S
    keep_until(door, section, lambda: "no token" in door.trouble)
    assert door.url == "" and "short" not in door.trouble
    file.write_text("s" * 32 + "\n")
    clock.now_s += RETRY_S
    keep_until(door, section, lambda: bool(door.url))
    assert httpx.get(door.url, trust_env=False).status_code == 401
    shown = {"authorization": f"Bearer {'s' * 32}"}
    assert httpx.get(door.url, trust_env=False, headers=shown).status_code == 200


def test_keeping_never_waits(door: MetricsExporter) -> None:
    begun_s = time.perf_counter()
    for _ in range(1000):
        door.keep(MetricsSection(), "demo", [GATEWAY])
    assert time.perf_counter() - begun_s < 10.0  # one wait of 10 ms in each would be as much
