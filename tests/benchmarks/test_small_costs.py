"""The small costs are of what really runs: the gateway's server, its reader, and an arbiter's replay."""

import asyncio

import pytest

from benchmarks import small_costs
from benchmarks.small_costs import READERS, idle_connection_kib, reading_ms, replay_s, serving_ms


def test_connections_and_a_replay_cost_something() -> None:
    assert 0 <= asyncio.run(idle_connection_kib(50)) < 1000
    assert replay_s(50) > 0


def test_a_stream_costs_cpu_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_costs, "STREAMS", 2)

    async def both_sides() -> list[float]:
        async with small_costs.writing(5) as port:
            reading = [await reading_ms(read, port, 5) for read in READERS.values()]
        return [await serving_ms(protocol, 5) for protocol in ("httptools", "h11")] + reading

    assert min(asyncio.run(both_sides())) > 0
