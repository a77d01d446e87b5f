"""What vLLM would refuse of an engine's arguments for what the model's config.json says. Pure.

By vLLM's own rules, and on the safe side: what is not sure to be refused is left to vLLM. A class of transformers may
give a key that is not in the file a value of its own, so only keys that are there count; of several numbers that vLLM
may mean, the one that allows most.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LENGTHS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
"""vLLM 0.29, ``derive_max_model_len_and_key`` in transformers_utils/model_arch_config_convertor.py."""
TEXT_PARTS = ("text_encoder", "decoder", "generator", "text_config", "llm_config")
"""Parts that vLLM takes as the language model's: transformers' ``get_text_config``, and vLLM's name for one of them."""
OTHER_PARTS = frozenset({"thinker_config", "language_config", "transf_decoder", "speculators_config", "auto_map"})
"""Where a config has one of these, other code decides which part counts."""
ROPES = ("rope_parameters", "rope_scaling")
MOST = 1e15  # of a number that means something: tokens, or how often more
NOT_SCALED = frozenset({"su", "longrope", "llama3"})
PLAIN_TYPES = frozenset({
    "apertus", "arcee", "codegen", "cohere", "cohere2", "deepseek_v2", "deepseek_v3", "ernie4_5", "ernie4_5_moe",
    "exaone4", "falcon", "gemma", "gemma2", "gemma3_text", "glm", "glm4", "glm4_moe", "gpt2", "gpt_bigcode", "gpt_neox",
    "gptj", "granite", "granitemoe", "hunyuan_v1_dense", "hunyuan_v1_moe", "jamba", "lfm2", "llama", "mistral",
    "mixtral", "mpt", "nemotron", "olmo", "olmo2", "olmo3", "olmoe", "opt", "persimmon", "phi", "phi3", "phimoe",
    "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "seed_oss", "smollm3", "stablelm", "starcoder2",
})  # fmt: skip
"""Model types whose class in transformers leaves these numbers as they are in the file, and scales none by default."""

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LongestContext:
    """How many tokens vLLM allows at most, and by which key of config.json."""

    tokens: float
    key: str
    scaled: bool = False


def longest_context(config: Config, overrides: object = None) -> LongestContext | None:
    """What ``max_model_len`` must not exceed; None: not sure.

    Args:
        config: config.json.
        overrides: the engine's ``hf_overrides``.
    """
    part = _text_part(config, overrides)
    if part is None:
        return None
    of_part = _ropes(part)
    # vLLM reads the language model's part alone; what stands above it may become its own on the way there.
    ropes = [*(of_part or [{}]), *(_ropes(config) if part is not config else ())]
    found = [_longest(part, rope) for rope in ropes]
    sure = [one for one in found if one is not None]
    return max(sure, key=lambda one: one.tokens) if len(sure) == len(found) else None


def attention_heads(config: Config, overrides: object = None) -> int | None:
    """Their number, which must be divisible by the GPUs of a replica; None: not sure."""
    part = _text_part(config, overrides)
    heads = None if part is None else part.get("num_attention_heads")
    return heads if isinstance(heads, int) and _is_number(heads) else None


def names_no_model(config: Config, overrides: object = None) -> bool:
    """Whether nothing says which class of models it is, so that neither transformers nor vLLM can read it."""
    known = {"model_type", "architectures", *OTHER_PARTS}
    return not known & config.keys() and (
        not overrides or (isinstance(overrides, dict) and not known & overrides.keys())
    )


def _text_part(config: Config, overrides: object) -> Config | None:
    """The language model's part of the config, if it is sure which that is and that nothing changes it."""
    if OTHER_PARTS & config.keys() or not _leaves_alone(overrides):
        return None
    parts = [config[name] for name in TEXT_PARTS if config.get(name) is not None] or [config]
    part = parts[0]
    is_sure = len(parts) == 1 and isinstance(part, Mapping) and str(part.get("model_type")) in PLAIN_TYPES
    return part if is_sure else None


def _leaves_alone(overrides: object) -> bool:
    """Whether they change nothing that is looked at here."""
    if not overrides:
        return True
    if not isinstance(overrides, dict):
        return False
    looked_at = {*LENGTHS, *TEXT_PARTS, *ROPES, "model_type", "num_attention_heads", "original_max_position_embeddings"}
    return not looked_at & overrides.keys()


def _longest(part: Config, rope: Mapping[str, Config]) -> LongestContext | None:
    numbers = {key: part[key] for key in LENGTHS if part.get(key) is not None}
    if not numbers or not all(map(_is_number, numbers.values())):
        return None
    key = "model_max_length" if numbers.get("model_max_length") else min(numbers, key=lambda name: numbers[name])
    tokens = float(numbers[key])
    if "gemma3" in str(part.get("model_type", "")):  # its length is scaled already
        return LongestContext(tokens, key)
    factor = 1.0
    for one in rope.values():
        kind = str(one.get("rope_type") or one.get("type") or "default")
        if kind in NOT_SCALED:
            continue
        told = one.get("factor", factor)
        factor = 1.0 if told is None else told
        if not _is_number(factor):
            return None
        if kind == "yarn":
            base = _yarn_base(part, one)
            if base is None:
                return None
            tokens, key = base, "original_max_position_embeddings"
    # What a config calls its largest length is allowed whatever the other keys say.
    most = max(tokens * factor, float(numbers.get("model_max_length") or 0))
    return LongestContext(most, key, scaled=factor != 1.0)


def _yarn_base(part: Config, rope: Config) -> float | None:
    """The length that yarn scales; where several are given, the largest."""
    told = [place.get("original_max_position_embeddings") for place in (rope, part)]
    given = [one for one in told if one is not None] or [part.get("max_position_embeddings")]
    return max(map(float, given)) if all(map(_is_number, given)) else None


def _ropes(part: Config) -> list[Mapping[str, Any]]:
    """Rotary embeddings by kind of layer, those of all under "": under each name that the config has for them."""
    return [
        rope if all(isinstance(one, Mapping) for one in rope.values()) else {"": rope}
        for name in ROPES
        if isinstance(rope := part.get(name), Mapping) and rope
    ]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < MOST
