"""An engine on a CPU plans with its slot's memory, unless the file bounds memory itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide_serve.engine.memory_bounds import GIB, SAID, cpu_memory_defaults


@given(st.integers(0, 1 << 45))
def test_the_kv_cache_leaves_most_of_the_slot_for_all_else(slot_bytes: int) -> None:
    found = cpu_memory_defaults({}, slot_bytes)
    kv_bytes = found["kv_cache_memory_bytes"]
    assert isinstance(kv_bytes, int) and kv_bytes <= slot_bytes / 4 and kv_bytes <= 4 * GIB
    assert found["max_model_len"] == -1  # vLLM fits it to the cache


@pytest.mark.parametrize("name", SAID)
def test_a_file_that_bounds_memory_is_left_alone(name: str) -> None:
    assert cpu_memory_defaults({name: 1}, 8 * GIB) == {}


def test_without_a_counted_share_it_is_the_smallest_that_is_counted() -> None:
    assert cpu_memory_defaults({"max_model_len": 512}, None)["kv_cache_memory_bytes"] == 3 * GIB // 4
