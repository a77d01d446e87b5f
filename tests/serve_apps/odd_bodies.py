"""Request bodies that a client may send and no client should: each field that vLLM knows, with values of every kind."""

from collections.abc import Iterator
from random import Random
from typing import Any

VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 7, 10**6, 2**31, 2**63, 2**64, 10**30, 0.5, -0.5, 1e-9, 1e308),
    *(float("nan"), float("inf"), "", "a", "auto", "none", "\u0000", "\ud800"),
    *([], [0], [-1], [10**9], ["a"], [""], [[]], [{}], {}, {"a": 1}, {"-1": 5}, {"99999": 1}),
    *({"type": "json_object"}, {"type": "json_schema"}, {"type": "text"}, {"json": {"type": "object"}}),
]
FIELDS = [
    "temperature",
    "top_p",
    "n",
    "seed",
    "stop",
    "logprobs",
    "top_logprobs",
    "logit_bias",
    "presence_penalty",
    "frequency_penalty",
    "response_format",
    "tools",
    "tool_choice",
    "user",
    "best_of",
    "echo",
    "suffix",
    "min_p",
    "top_k",
    "repetition_penalty",
    "length_penalty",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "min_tokens",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "truncate_prompt_tokens",
    "prompt_logprobs",
    "allowed_token_ids",
    "bad_words",
    "add_special_tokens",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
    "chat_template_kwargs",
    "documents",
    "mm_processor_kwargs",
    "structured_outputs",
    "priority",
    "request_id",
    "return_token_ids",
    "cache_salt",
    "vllm_xargs",
    "stream_options",
    "stream",
    "use_beam_search",
    "prompt_embeds",
    "logits_processors",
    "reasoning_effort",
    "thinking_token_budget",
    "data_parallel_rank",
    "parallel_tool_calls",
    "functions",
]
PROMPTS: list[Any] = [
    "",
    [],
    ["a", ""],
    [0],
    [-1],
    [8191],
    [8192],
    [10**9],
    [[0], [8192]],
    [[]],
    "\u0000",
    "\ud800",
    [True],
]
CONTENTS: list[Any] = [None, 7, [], {}, ["a"], [{"type": "text"}], [{"type": "nope"}], [{"type": "input_audio"}]]


def odd_bodies(seed: int, number: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """(path, body): every odd prompt and content, and then so many odd fields, always the same ones for a seed."""
    random = Random(seed)
    for prompt in PROMPTS:
        yield "/v1/completions", {"prompt": prompt, "max_tokens": 2}
    for content in CONTENTS:
        yield "/v1/chat/completions", {"messages": [{"role": "user", "content": content}], "max_tokens": 2}
    for _ in range(number):
        odd = {random.choice(FIELDS): random.choice(VALUES)}
        if random.random() < 0.5:
            yield "/v1/completions", {"prompt": "hi", "max_tokens": 2} | odd
        else:
            yield "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2} | odd
