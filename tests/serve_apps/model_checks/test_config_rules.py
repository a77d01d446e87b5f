"""What a model's config.json allows: never less than vLLM does, which is asked, and as much in the plain cases."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide_serve.model_checks.config_rules import (
    LENGTHS,
    PLAIN_TYPES,
    ROPES,
    TEXT_PARTS,
    attention_heads,
    longest_context,
    names_no_model,
)

LLAMA: dict[str, Any] = {"model_type": "llama", "max_position_embeddings": 2048, "num_attention_heads": 8}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1000}


def limit(config: dict[str, Any], overrides: object = None) -> float | None:
    found = longest_context(config, overrides)
    return None if found is None else found.tokens


@pytest.mark.parametrize(
    ("changes", "tokens"),
    [
        ({}, 2048),
        ({"n_positions": 1024}, 1024),
        ({"model_max_length": 8192}, 8192),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, 4096),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2}}, 4096),
        ({"rope_scaling": YARN}, 4000),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, 8192),
        ({"rope_scaling": YARN, "original_max_position_embeddings": 1500}, 6000),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 2048),
        ({"rope_scaling": {"type": "su", "factor": 8.0}}, 2048),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 8.0}}, 2048),
        ({"rope_scaling": {"rope_type": "linear", "factor": None}}, 2048),
        ({"rope_scaling": None}, 2048),
        ({"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0}, "other": {}}}, 16384),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2}, "rope_scaling": {"factor": 8}}, 16384),
        ({"model_type": "gemma3_text", "rope_scaling": {"rope_type": "linear", "factor": 8.0}}, 2048),
        ({"sliding_window": 128}, 2048),
        # not sure
        ({"max_position_embeddings": None}, None),
        ({"max_position_embeddings": "2048"}, None),
        ({"max_position_embeddings": True}, None),
        ({"rope_scaling": {"rope_type": "linear", "factor": "8"}}, None),
        ({"model_type": "of_its_author"}, None),
        ({"model_type": None}, None),
        ({"auto_map": {"AutoConfig": "configuration_own.OwnConfig"}}, None),
        ({"speculators_config": {}}, None),
        ({"thinker_config": {"text_config": {}}}, None),
    ],
    ids=str,
)  # fmt: skip
def test_what_a_config_allows(changes: dict[str, Any], tokens: float | None) -> None:
    assert limit(LLAMA | changes) == tokens


@pytest.mark.parametrize("name", TEXT_PARTS)
def test_in_a_nested_config_the_language_models_part_counts(name: str) -> None:
    part = LLAMA | {"max_position_embeddings": 4096}
    whole = {"model_type": "llava", "max_position_embeddings": 64, "vision_config": {"max_position_embeddings": 32}}
    assert limit(whole | {name: part}) == 4096
    assert attention_heads(whole | {name: part}) == 8
    assert limit(whole | {name: part, "rope_scaling": {"type": "linear", "factor": 2.0}}) == 8192, (
        "it may become its own"
    )
    assert limit(whole) is None, "the class fills in a part of its own"
    assert limit(whole | {name: {"max_position_embeddings": 4096}}) is None, "of which type, only the class knows"
    assert limit(whole | {name: [1]}) is None
    assert limit(whole | dict.fromkeys(TEXT_PARTS[-2:], part)) is None, "which of them, only the class knows"


@pytest.mark.parametrize(
    "overrides",
    [
        *({key: 8192} for key in LENGTHS),
        *({key: {"rope_type": "linear", "factor": 8.0}} for key in ROPES),
        {"text_config": {"max_position_embeddings": 8192}},
        {"model_type": "mistral"},
        "a_function",
        ["max_position_embeddings"],
    ],
    ids=str,
)
def test_an_override_of_any_of_this_leaves_it_to_vllm(overrides: object) -> None:
    assert longest_context(LLAMA, overrides) is None
    assert limit(LLAMA, {"architectures": ["LlamaForCausalLM"]}) == 2048 == limit(LLAMA, {}) == limit(LLAMA, None)


def test_what_names_no_model() -> None:
    assert names_no_model({}) and names_no_model({"max_position_embeddings": 3}, {"rope_scaling": {}})
    assert not names_no_model(LLAMA) and not names_no_model({"architectures": ["X"]})
    assert not names_no_model({"auto_map": {}}) and not names_no_model({}, {"model_type": "llama"})
    assert not names_no_model({}, "a_function")


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-10, 10**400), st.floats(), st.text(max_size=4), st.lists(st.none())
)
KEYS = st.sampled_from([*LENGTHS, *ROPES, *TEXT_PARTS, "model_type", "factor", "rope_type", "num_attention_heads"])
ANY = st.recursive(VALUES, lambda inner: st.dictionaries(KEYS, inner, max_size=4), max_leaves=12)


@given(st.dictionaries(KEYS, ANY, max_size=6), ANY)
def test_whatever_a_config_holds_it_is_judged_or_left_alone(config: dict[str, Any], overrides: object) -> None:
    for one in (config, {"model_type": "llama"} | config, LLAMA | config):
        found = longest_context(one, overrides)
        assert found is None or found.tokens > 0
        heads = attention_heads(one, overrides)
        assert heads is None or heads > 0


LENGTH_SETS: list[dict[str, Any]] = [
    *({key: 3000} for key in LENGTHS),
    {"max_position_embeddings": 3000, "seq_len": 64},
]
ROPE_SETS: list[dict[str, Any]] = [
    {},
    {"rope_scaling": {"type": "linear", "factor": 2.0}},
    {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    {"rope_scaling": YARN},
    {"rope_scaling": YARN, "original_max_position_embeddings": 500},
    {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}},
    {"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "linear", "factor": 8.0}},
]


@pytest.mark.vllm
def test_vllm_never_allows_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each plain type with each key and each way of scaling, by vLLM's own reading of config.json."""
    pytest.importorskip("vllm")
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from vllm.config.model import _get_and_verify_max_len
    from vllm.transformers_utils import repo_utils
    from vllm.transformers_utils.config import get_config, get_hf_text_config
    from vllm.transformers_utils.model_arch_config_convertor import (
        MODEL_ARCH_CONFIG_CONVERTORS,
        ModelArchConfigConvertorBase,
    )

    monkeypatch.setattr(
        repo_utils.time, "sleep", lambda seconds: None
    )  # between two readings of a file that is refused

    def allowed(config: dict[str, Any]) -> tuple[float, int] | None:
        """The longest context, and the heads; None: it is not read at all."""
        (tmp_path / "config.json").write_text(json.dumps(config))
        try:
            whole = get_config(str(tmp_path), trust_remote_code=False)
            text = get_hf_text_config(whole)
            kind = MODEL_ARCH_CONFIG_CONVERTORS.get(whole.model_type, ModelArchConfigConvertorBase)
            known = kind(whole, text).convert()
        except Exception:  # noqa: BLE001 - refused for another reason
            return None

        def takes(tokens: int) -> bool:
            try:
                _get_and_verify_max_len(text, known, None, tokens, False, None)
            except ValueError:
                return False
            return True

        low, high = 0, 10**9
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if takes(middle) else (low, middle - 1)
        return low, known.total_num_attention_heads

    unlike, judged = [], 0
    for kind in sorted(PLAIN_TYPES):
        assert kind in CONFIG_MAPPING, kind
        base = {"model_type": kind, "num_attention_heads": 8, "num_key_value_heads": 8, "hidden_size": 64}
        for lengths in LENGTH_SETS:
            for ropes in ROPE_SETS if lengths == {"max_position_embeddings": 3000} else ROPE_SETS[:1]:
                config = base | lengths | ropes
                ours, theirs = longest_context(config), allowed(config)
                if ours is None or theirs is None:
                    continue
                judged += 1
                if int(ours.tokens) < theirs[0] or attention_heads(config) != theirs[1]:
                    unlike.append((kind, lengths, ropes, ours, theirs))
    assert not unlike, "\n".join(map(str, unlike))
    assert judged > 5 * len(PLAIN_TYPES)
    plain = {"model_type": "llama", "num_attention_heads": 8, "hidden_size": 64, "max_position_embeddings": 3000}
    for ropes in ROPE_SETS[:4]:
        theirs = allowed(plain | ropes)
        assert theirs is not None and limit(plain | ropes) == theirs[0], ropes
    nested = {"model_type": "llava", "text_config": plain, "vision_config": {"model_type": "clip_vision_model"}}
    assert allowed(nested) == (3000, 8) and limit(nested) == 3000
