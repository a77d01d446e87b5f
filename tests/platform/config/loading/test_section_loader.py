"""Files of ours but the pool's: what is wrong in them is said in their own keys."""

from pathlib import Path
from textwrap import dedent

import pytest

from ebbtide.config.errors import ConfigErrors
from ebbtide.config.loading.section_loader import load_section
from ebbtide.config.loading.validation_messages import model_at
from ebbtide_simulator.scenes.file import EngineModel, SimulationFile


def problems(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "s.yaml"
    path.write_text(dedent(text))
    with pytest.raises(ConfigErrors) as caught:
        load_section(path, SimulationFile)
    return [f"{one.path}: {one.message} ({one.hint})" for one in caught.value.problems]


def test_hints_are_keys_of_this_file_and_not_of_the_pools(tmp_path: Path) -> None:
    assert problems(
        tmp_path,
        """\
        pool: {nodes: 2}
        endpoints: [{name: chat, prompt_tokns: 4}]
        engines: {mine: {prefill_tok_s: 1, decode_toks: 4}}
        runs: {tick_s: 4}
        run: {tick: 3, gbytes_per_s: 4}
        """,
    ) == [
        "endpoints[0].prompt_tokns: unknown key 'prompt_tokns' (did you mean 'prompt_tokens'?)",
        "engines.mine.decode_toks: unknown key 'decode_toks' (did you mean 'decode_tok_s'?)",
        "runs: unknown key 'runs' (did you mean 'run'?)",
        "run.tick: unknown key 'tick' (did you mean 'tick_s'?)",
        "run.gbytes_per_s: unknown key 'gbytes_per_s' (it belongs in storage)",
    ]


def test_a_list_whose_one_item_is_wrong_is_not_said_to_be_empty(tmp_path: Path) -> None:
    [only] = problems(tmp_path, "pool: {nodes: 2}\nendpoints: [{name: chat, ttft_slo_s: 0}]\n")
    assert only.startswith("endpoints[0].ttft_slo_s: must be greater than 0")


def test_a_list_that_is_empty_is(tmp_path: Path) -> None:
    [only] = problems(tmp_path, "pool: {nodes: 2}\nendpoints: []\n")
    assert only.startswith("endpoints: ") and "at least 1 item" in only


def test_a_key_that_lacks_is_told_with_what_it_is_for_where_that_is_written(tmp_path: Path) -> None:
    assert problems(tmp_path, "pool: {}\n") == [
        "endpoints: 'endpoints' is required: One for each trace of traffic, each with a name. (None)",
        "pool.nodes: 'nodes' is required (None)",
    ]


def test_a_place_below_a_name_of_the_users_leads_to_its_model() -> None:
    assert model_at(("engines", "mine"), SimulationFile) is EngineModel
    assert model_at(("engines", "mine", "gpus"), SimulationFile) is None
