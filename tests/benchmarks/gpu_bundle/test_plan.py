"""What is in a bundle, what is left out, and how it is divided."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gpu.bundle.plan import MOST_PARTS, CannotBundle, Chunk, Target, dropped, into_parts
from ebbtide_serve.vllm_versions.supported import why_not

chunks = st.lists(st.builds(Chunk, st.uuids().map(str), st.integers(1, 100), st.booleans()), max_size=30)


@given(chunks, st.integers(50, 400))
def test_every_chunk_is_in_one_part_and_none_is_too_large(found: list[Chunk], most: int) -> None:
    try:
        parts = into_parts(found, most)
    except CannotBundle as error:
        assert f"{MOST_PARTS} parts" in str(error)
        total = sum(chunk.size for chunk in found)
        first = sum(chunk.size for chunk in found if chunk.first)
        assert first > most or total > most or any(chunk.size > most for chunk in found)
        return
    assert sorted(chunk.name for part in parts for chunk in part) == sorted(chunk.name for chunk in found)
    assert len(parts) <= MOST_PARTS
    assert all(sum(chunk.size for chunk in part) <= most for part in parts)
    where = {number for number, part in enumerate(parts) for chunk in part if chunk.first}
    assert where <= {0}, "the benchmarks are in the first part, all of them"


def test_the_first_part_is_the_benchmarks_alone_where_three_parts_suffice() -> None:
    found = [Chunk("b", 10, True), Chunk("x", 50, False), Chunk("y", 50, False)]
    assert [[chunk.name for chunk in part] for part in into_parts(found, 60)] == [["b"], ["x"], ["y"]]


def test_its_room_is_used_where_they_do_not() -> None:
    found = [Chunk("b", 10, True), *(Chunk(name, 40, False) for name in "xyz")]
    assert [[chunk.name for chunk in part] for part in into_parts(found, 60)] == [["b", "x"], ["y"], ["z"]]


@pytest.mark.parametrize(
    ("torch", "vllm"), [("2.11+cu130", "0.26.0"), ("2.11.0+cu130", "0.26.0"), ("2.13+cu130", "0.29.0")]
)
def test_the_version_of_vllm_follows_from_torch(torch: str, vllm: str) -> None:
    assert Target(torch=torch).vllm == vllm
    assert why_not(vllm) == ""


def test_a_torch_without_a_vllm_is_refused_by_name() -> None:
    with pytest.raises(CannotBundle, match=r"torch 2\.12\.1\+cu130; there are: 2\.11 \(vLLM 0\.26\.0\)"):
        _ = Target(torch="2.12.1+cu130").vllm
    with pytest.raises(CannotBundle, match="names no CUDA"):
        _ = Target(torch="2.11").cuda


@pytest.mark.parametrize(
    ("path", "sm", "gone"),
    [
        ("vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so", 90, True),
        ("vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so", 90, False),
        ("vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so", 80, False),
        ("vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so", 80, True),
        ("vllm/_C_stable_libtorch.abi3.so", 90, False),
        ("ray/_raylet.so", 90, False),
        ("ray/jars/ray_dist.jar", 90, True),
        ("pyarrow/libarrow.so.2600", 90, False),
    ],
)
def test_what_a_gpu_does_not_need_is_left_out(path: str, sm: int, gone: bool) -> None:
    assert dropped(path, sm) is gone
