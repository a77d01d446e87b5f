"""Fingerprints: what differs gets another name, what only says where things are does not."""

from typing import Any

import pytest

from ebbtide.storage.names import ref_name
from ebbtide_serve.compile_cache.fingerprint import fingerprint
from ebbtide_serve.compile_cache.machine import machine_facts, versions

BASE: dict[str, Any] = {
    "machine": {"gpu": "NVIDIA H200", "driver": "580.95.05"},
    "versions": {"vllm": "0.29.0", "torch": "2.13.0", "triton": "3.9.0", "python": "3.11.2"},
    "model": "ab" * 32,
    "tensor_parallel": 2,
    "args": {"max_model_len": 4096, "dtype": "bfloat16"},
    "environ": {"VLLM_USE_V1": "1", "HOME": "/root"},
}


@pytest.mark.parametrize(
    "change",
    [
        {"machine": {"gpu": "NVIDIA H100", "driver": "580.95.05"}},
        {"machine": {"gpu": "NVIDIA H200", "driver": "590.1"}},
        {"versions": BASE["versions"] | {"torch": "2.14.0"}},
        {"versions": BASE["versions"] | {"flashinfer": "1"}},
        {"model": "cd" * 32},
        {"tensor_parallel": 1},
        {"args": {"max_model_len": 8192, "dtype": "bfloat16"}},
        {"args": {"dtype": "bfloat16"}},
        {"args": BASE["args"] | {"compilation_config": {"mode": 3}}},
        {"environ": {"VLLM_USE_V1": "0"}},
        {"environ": {"VLLM_USE_V1": "1", "TORCHINDUCTOR_MAX_AUTOTUNE": "1"}},
    ],
)
def test_what_compiled_code_depends_on_makes_another_name(change: dict[str, Any]) -> None:
    assert fingerprint(**BASE | change).ref_name != fingerprint(**BASE).ref_name


@pytest.mark.parametrize(
    "change",
    [
        {"args": BASE["args"] | {"model": "/other/place", "load_format": "ebbtide_flat", "seed": 3}},
        {"args": dict(reversed(BASE["args"].items()))},
        {"environ": {"VLLM_USE_V1": "1", "HOME": "/elsewhere"}},
        {"environ": {"VLLM_USE_V1": "1", "VLLM_CACHE_ROOT": "/x", "TRITON_CACHE_DIR": "/y", "VLLM_PORT": "1"}},
        {"environ": {"VLLM_USE_V1": "1", "VLLM_API_KEY": "secret"}},
    ],
)
def test_places_names_and_secrets_make_no_difference(change: dict[str, Any]) -> None:
    assert fingerprint(**BASE | change) == fingerprint(**BASE)


def test_names_and_facts_can_stand_in_the_store() -> None:
    made = fingerprint(**BASE)
    assert ref_name(made.ref_name) == made.ref_name
    key = dict(made.facts)
    assert all(text.isprintable() and len(text) < 4096 for text in (*key, *key.values()))


def test_this_machine_can_be_named() -> None:
    facts = machine_facts()
    assert facts == machine_facts()
    assert all(facts.values())
    assert versions()["python"].startswith("3.")
    assert {"vllm", "torch"} <= versions().keys()
    assert versions(["flashinfer"]).keys() <= {"flashinfer", "python"}
