"""Keys and names of flat forms."""

from dataclasses import fields, replace
from typing import Any

import pytest

from ebbtide.storage.models.registry.derived_names import model_of
from ebbtide.storage.names import ObjectId, file_name, ref_name, tag
from ebbtide_serve.loading.flat.flat_key import FlatKey, digest_of, without_places

KEY = FlatKey(
    model=ObjectId("ab" * 32),
    dtype="bf16",
    tensor_parallel=8,
    engine="vllm 0.29.0",
    quantization="",
    code="c0de",
    config="c0ff",
    device="cuda 9.0",
    layout_version=1,
)


@pytest.mark.parametrize("field", [one.name for one in fields(FlatKey)])
def test_every_part_of_a_key_makes_another_name(field: str) -> None:
    value: Any = 2 if isinstance(getattr(KEY, field), int) else "cd" * 32
    other = replace(KEY, **{field: value})
    assert other.ref_name != KEY.ref_name
    assert other.as_manifest_key() != KEY.as_manifest_key()


def test_names_can_stand_in_the_store() -> None:
    assert ref_name(KEY.ref_name) == KEY.ref_name
    assert tag(KEY.tag(7, "ef" * 32)) == "tp8-rank7-" + "ef" * 8
    assert file_name(KEY.file_name(7)) == "tp8/rank7.safetensors"


def test_ranks_and_layouts_have_tags_of_their_own() -> None:
    assert len({KEY.tag(rank, layout * 32) for rank in range(2) for layout in ("ab", "cd")}) == 4


def test_the_model_of_a_flat_form_can_be_told_by_its_name() -> None:
    assert model_of(KEY.ref_name) == KEY.model
    assert model_of("org/model") is None
    assert model_of("flat/model") is None


def test_a_configuration_counts_without_its_place() -> None:
    config = {"layers": 2, "_name_or_path": "/a", "inner": {"transformers_version": "5", "heads": 3}}
    elsewhere = {"inner": {"heads": 3, "_name_or_path": "b"}, "layers": 2}
    assert digest_of(without_places(config)) == digest_of(without_places(elsewhere))
    assert digest_of(without_places(config | {"layers": 3})) != digest_of(without_places(elsewhere))
