"""Engine arguments that a version does not have, or not with such a value, are found where they stand."""

from dataclasses import replace
from typing import Any

import pytest

from ebbtide.config.finding import text_path
from ebbtide_serve.vllm_versions.engine_arguments import argument_findings
from ebbtide_serve.vllm_versions.facts import Facts
from ebbtide_serve.vllm_versions.known_facts import all_facts, default_facts

LOC = ("endpoints", 0, "engine")


def told(arguments: dict[str, Any], facts: Facts | None = None) -> list[str]:
    found = argument_findings(facts or default_facts(), arguments, LOC, others=all_facts)
    return [
        f"{text_path(one.loc[3:])}: {one.message}" + (f" ({one.hint})" if one.hint else "")
        + (" @key" if one.at_key else "")
        for one in found
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"enforce_eagr": True},
            "enforce_eagr: vLLM 0.29.0 has no engine argument 'enforce_eagr' (did you mean 'enforce_eager'?) @key",
        ),
        (
            {"port": 80},
            "port: vLLM 0.29.0 has no engine argument 'port' "
            "(it is one of vLLM's HTTP server, in whose place the pool's gateway is) @key",
        ),
        ({"Max_Model_Len": 3}, "Max_Model_Len: vLLM 0.29.0 has no engine argument 'Max_Model_Len' "
         "(did you mean 'max_model_len'?) @key"),
        ({"zzz": 3}, "zzz: vLLM 0.29.0 has no engine argument 'zzz' @key"),
        (
            {"max_model_len": "8k"},
            "max_model_len: expected a whole number, got '8k' (write 8000: only vLLM's command line takes 8k)",
        ),
        (
            {"max_model_len": "auto"},
            "max_model_len: expected a whole number, got 'auto' (leave it out, so that vLLM chooses)",
        ),
        ({"max_num_seqs": 1.5}, "max_num_seqs: expected a whole number, got 1.5"),
        ({"max_num_seqs": [1]}, "max_num_seqs: expected a whole number, got a list"),
        ({"max_num_seqs": 0}, "max_num_seqs: must be at least 1, is 0"),
        ({"gpu_memory_utilization": 90}, "gpu_memory_utilization: must be at most 1, is 90"),
        ({"gpu_memory_utilization": "1.5"}, "gpu_memory_utilization: must be at most 1, is '1.5'"),
        ({"gpu_memory_utilization": None}, "gpu_memory_utilization: expected a number, got nothing"),
        ({"enforce_eager": "perhaps"}, "enforce_eager: expected true or false, got 'perhaps'"),
        (
            {"dtype": "bfloat61"},
            "dtype: expected one of auto, half, float16, bfloat16, float, float32, got 'bfloat61' "
            "(did you mean 'bfloat16'?)",
        ),
        ({"quantization": 8}, "quantization: expected text, got 8 (put it in quotes)"),
        ({"max_lora_rank": 9}, "max_lora_rank: expected one of 1, 8, 16, 32, 64, 128, 256, 320, 512, got 9"),
        (
            {"compilation_config": {"cudagraph_mod": "NONE"}},
            "compilation_config.cudagraph_mod: vLLM has no such field: 'cudagraph_mod' "
            "(did you mean 'cudagraph_mode'?) @key",
        ),
        (
            {"speculative_config": {"num_spec_tokens": 3}},
            "speculative_config.num_spec_tokens: vLLM has no such field: 'num_spec_tokens' "
            "(did you mean 'num_speculative_tokens'?) @key",
        ),
        (
            {"speculative_config": {"num_speculative_tokens": "many"}},
            "speculative_config.num_speculative_tokens: expected a whole number, got 'many'",
        ),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_what_was_meant(arguments: dict[str, Any], words: str) -> None:
    assert told(arguments) == [words]


def test_what_vllm_takes_is_taken() -> None:
    assert (
        told(
            {
                "max_model_len": None,
                "max_num_seqs": "16",
                "block_size": 16.0,
                "gpu_memory_utilization": 1,
                "enforce_eager": "true",
                "enable_prefix_caching": None,
                "kv_cache_memory_bytes": 1 << 30,
                "served_model_name": ["a", "b"],
                "hf_overrides": {"anything": 1},
                "compilation_config": {"mode": 3, "cudagraph_mode": "FULL", "pass_config": {"x": 1}},
                "speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "model": None},
                "cudagraph_capture_sizes": [1, 2, 4],
                "optimization_level": 2,
                "attention_backend": "FLASH_ATTN",
                "tokenizer_mode": "a_plugin_of_mine",
                "limit_mm_per_prompt": {"image": 2, "video": {"count": 1}},
            }
        )
        == []
    )


def test_an_argument_of_other_versions_is_said_to_be_theirs() -> None:
    facts = {one.version: one for one in all_facts()}
    newest, oldest = facts["0.32.0"], facts["0.26.0"]
    name = min(newest.engine_args.keys() - facts["0.31.0"].engine_args.keys())
    assert told({name: 1}, oldest) == [f"{name}: vLLM 0.26.0 has no engine argument {name!r} (vLLM 0.32.0 has it) @key"]


@pytest.mark.parametrize("facts", all_facts(), ids=lambda one: one.version)
def test_facts_of_an_earlier_form_judge_what_they_know(facts: Facts) -> None:
    known = {"enforce_eager": True, "max_model_len": 1024, "dtype": "bfloat16", "gpu_memory_utilization": None}
    assert told(known if facts.none_by_default is None else known | {"gpu_memory_utilization": 0.5}, facts) == []
    found = told({"enforce_eagr": True, "max_num_seqs": "many", "dtype": 16}, facts)
    assert len(found) == 3 and "did you mean 'enforce_eager'?" in found[0]


def test_each_mistake_is_found() -> None:
    arguments = {"a_b_c": 1, "max_num_seqs": -1, "dtype": "x", "seed": 1, "compilation_config": {"x": 1, "y": 2}}
    assert len(told(arguments)) == 5


def test_without_the_facts_of_a_class_its_fields_are_vllms_to_judge() -> None:
    assert told({"compilation_config": {"x": 1}}, replace(default_facts(), config_classes={})) == []
