"""Fifty files as a newcomer gets them wrong: one error each, with its place and what to do, and nothing is changed.

All are the file of `ebbtide init` with one mistake in it.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from ebbtide.cli.main import cli
from ebbtide_quickstart.pool_draft import PoolDraft, pool_text

BASE = pool_text(PoolDraft())
OFFLINE = ("validate", "--offline")
JARGON = re.compile(
    r"Traceback|pydantic|ValidationError|NoneType|type=|<[a-z ]+>|should match|nobody|whoever|reckon|hinder",
    re.IGNORECASE,
)
REPLICAS, WORKERS = "replicas: {min: 0, max: 4}", "workers: {min: 1, max: 8}"

Edit = tuple[str, str]

# what was done to the file, where it is told, and what it says: the mistake and the remedy
FILES: list[tuple[Sequence[Edit], str, str]] = [
    ([("  slots: all", "  slot: all")], "4:3", "pool.slot: unknown key 'slot' (did you mean 'slots'?)"),
    ([("endpoints:", "endpoint:")], "10:1", "unknown key 'endpoint' (did you mean 'endpoints'?)"),
    ([("gateway:\n", "reserve: 1\ngateway:\n")], "7:1", "unknown key 'reserve' (it belongs in pool)"),
    ([("  name: mine\n", "")], "2:1", "'name' is required: Name of the pool"),
    ([("name: mine", "name: My Pool")], "3:9", "a name starts with a small letter or digit"),
    ([("slots: all", "slots: 0")], "4:10", 'expected a whole number from 1, or "all"'),
    ([("slots: all", "slots: two")], "4:10", 'expected a whole number from 1, or "all"'),
    ([("slots: all", 'slots: "2"')], "4:10", "(leave out the quotes)"),
    ([("port: 8000", "port: 80000")], "8:9", "must be less than or equal to 65535"),
    ([("port: 8000", "port: http")], "8:9", "expected a whole number, got text"),
    ([("  name: mine", "\tname: mine")], "3:1", "a tab (U+0009) stands where spaces must: type spaces"),
    ([("  name: mine", "  name:\u00a0mine")], "3:8", "a non-breaking space (U+00A0) stands there: type a plain space"),
    ([("train:train", "“train:train”")], "18:17", 'a typographic quotation mark (U+201C) stands there: type a plain "'),
    (
        [(REPLICAS, REPLICAS[:-1])],
        "14:5",
        "expected ',' or '}' while parsing a flow mapping (is a { of this line or one",
    ),
    ([("  slots: all", "  slots: all\n  slots: 2")], "5:3", "the key 'slots' is given twice (first in line 4)"),
    (
        [("args: {steps: 100000}", "args: *steps")],
        "20:11",
        "undefined alias 'steps' (an anchor of that name, &NAME, must",
    ),
    ([(REPLICAS, "replicas: {min: 5, max: 4}")], "13:29", "max is 4, less than min, which is 5"),
    ([(WORKERS, "workers: {min: 9, max: 8}")], "21:28", "max is 8, less than min, which is 9"),
    ([("global_batch: 64", "global_batch: 4")], "22:19", "global_batch is 4, less than workers.max, which is 8"),
    ([("micro_batch: 8", "micro_batch: 100")], "23:18", "micro_batch is 100, more than global_batch, which is 64"),
    ([("train:train", "train.py")], "18:17", 'expected "module:function", such as "my_package.train:main"'),
    ([("train:train", "code/train:train")], "18:17", 'expected "module:function"'),
    ([("args: {steps: 100000}", "args: [1000]")], "20:11", "expected a mapping (key: value), got a list"),
    ([("- name: pretrain", "- name: chat")], "17:11", "the name 'chat' is already taken by endpoints[0]"),
    (
        [("enforce_eager", "enforce_eagre")],
        "14:14",
        "no engine argument 'enforce_eagre' (did you mean 'enforce_eager'?)",
    ),
    ([("enforce_eager: true", "enforce_eager: maybe")], "14:29", "expected true or false, got 'maybe'"),
    ([("enforce_eager", "enforce-eager")], "14:14", "'enforce-eager' is no Python name (write 'enforce_eager')"),
    (
        [("enforce_eager: true", "served_model_name: x")],
        "14:14",
        "'served_model_name' is not yours to set: the endpoint's",
    ),
    ([("enforce_eager: true", "tensor_parallel_size: 2")], "14:14", "write it as `gpus_per_replica` of the endpoint"),
    ([("enforce_eager: true", "trust_remote_code: true")], "14:33", "is never run: only false is accepted"),
    ([("gateway:\n", "gateway:\n  host: 0.0.0.0\n")], "8:9", "no keys are given: add one under `keys`, or listen on"),
    (
        [("jobs:\n", "keys:\n  - {name: a, secret: hunter2}\n\njobs:\n")],
        "17:23",
        "never written inline: write {file: PATH}",
    ),
    ([("micro_batch: 8", "micro_batch: -8")], "23:18", "must be greater than or equal to 1"),
    ([("  shared_dir:", "  host_memory_per_node: 8 GBs\n  shared_dir:")], "5:25", 'a size such as "8 GiB"'),
    (
        [(REPLICAS, f"{REPLICAS}\n    idle_after_s: 30s")],
        "14:19",
        "expected a number, got text (write 30, without a unit)",
    ),
    (
        [("slots: all", "slots: 2"), (REPLICAS, f"{REPLICAS}\n    gpus_per_replica: 4")],
        "14:23",
        "and the pool has 2 slots",
    ),
    (
        [("slots: all", "slots: 2"), (REPLICAS, "replicas: {min: 3, max: 4}")],
        "13:21",
        "need 3 slots up to here, and the pool",
    ),
    ([("slots: all", "slots: 2"), (WORKERS, "workers: {min: 3, max: 8}")], "21:20", "jobs can have at most 2 slots"),
    ([("slots: all", "slots: 2\n  reserve: 2")], "5:12", "reserve is 2, and the pool has 2 slots: none is left"),
    (
        [("slots: all", "slots: all\n  nodes_max: 2\n  node_gpus: 1")],
        "5:3",
        "only a cluster that is joined (ray_address)",
    ),
    ([("slots: all", "slots: 2\n  num_cpus: 0")], "5:13", "must be greater than or equal to 1"),
    ([("  shared_dir: shared", "")], "2:1", "shared_dir is required because the file has endpoints"),
    ([("jobs:\n  - name", "jobs:\n  name")], "18:15", "is the line indented as the one before it"),
    ([("models/tiny", "''")], "12:12", "expected a path"),
    ([("models/tiny", "https://host/model")], "12:12", "bring it in first: ebbtide models import URL"),
    (
        [(REPLICAS, f"{REPLICAS}\n    scheduled: [{{at: '25:00', replicas: 1}}]")],
        "14:22",
        'a time of day, such as "09:00"',
    ),
    ([("jobs:\n", "teams:\n  - {name: a, quota: 0}\n\njobs:\n")], "17:22", "must be greater than or equal to 1"),
    ([("slots: all", "slots: all\n  mode: watch")], "5:9", "expected 'manage' or 'observe'"),
]

# the same for what the file names and this machine does not have
MACHINE: list[tuple[Sequence[Edit], str, str]] = [
    ([("models/tiny", "/no/model")], "12:12", "there is no directory /no/model"),
    ([("models/tiny", "models/big")], "12:12", "has no model models/big:latest (import it once: ebbtide models import"),
    (
        [("models/tiny", "hf://org/name")],
        "12:12",
        "(import it once: ebbtide models import hf://org/name --name org/name",
    ),
    ([("train:train", "train:trian")], "18:17", "defines no 'trian' (did you mean 'train'?)"),
    ([("train:train", "trian:train")], "18:17", "there is no module 'trian' in "),
    ([("working_dir: code", "working_dir: cod")], "19:18", "there is no directory "),
    ([("jobs:\n", "keys:\n  - {name: a, secret: {file: a.key}}\n\njobs:\n")], "17:23", "the secret file "),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What `ebbtide init` leaves, with a model that only looks like one."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("def train(args): ...\n")
    model = tmp_path / "models" / "tiny"
    model.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json"):
        (model / name).write_text('{"model_type": "llama"}')
    (model / "model.safetensors").write_bytes(bytes(64))
    return tmp_path


def told(folder: Path, edits: Sequence[Edit], words: Sequence[str]) -> tuple[int, list[str]]:
    text = BASE
    for before, after in edits:
        assert before in text
        text = text.replace(before, after, 1)
    file = folder / "pool.yaml"
    file.write_text(text)
    entries = sorted(folder.rglob("*"))
    result = CliRunner().invoke(cli, [*words, str(file)])
    assert sorted(folder.rglob("*")) == entries and file.read_text() == text
    assert not JARGON.search(result.output), result.output
    return result.exit_code, (result.stderr if result.exit_code else result.stdout).splitlines()


def test_without_a_mistake_it_is_valid(folder: Path) -> None:
    assert told(folder, [], OFFLINE)[0] == 0
    assert told(folder, [], ["validate"])[0] == 0


@pytest.mark.parametrize(
    ("edits", "place", "words"), FILES, ids=[after for edits, *_ in FILES for _, after in edits[-1:]]
)
def test_a_wrong_file_has_one_error_with_its_place_and_remedy(
    folder: Path, edits: Sequence[Edit], place: str, words: str
) -> None:
    code, lines = told(folder, edits, OFFLINE)
    assert code == 2 and len(lines) == 2 and lines[1] == "1 problem", lines
    assert lines[0].startswith(f"{folder}/pool.yaml:{place}: ") and words in lines[0], lines[0]


@pytest.mark.parametrize(("edits", "place", "words"), MACHINE, ids=[edits[-1][1] for edits, *_ in MACHINE])
def test_what_this_machine_lacks_is_said_to_be_so(folder: Path, edits: Sequence[Edit], place: str, words: str) -> None:
    code, lines = told(folder, edits, ["validate"])
    assert code == 2 and len(lines) == 2, lines
    assert lines[0].startswith(f"{folder}/pool.yaml:{place}: on this machine: ") and words in lines[0], lines[0]
    assert told(folder, edits, OFFLINE)[0] == 0


@pytest.mark.parametrize("command", ["up", "plan"])
def test_up_and_plan_say_the_same_and_start_nothing(
    folder: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EBBTIDE_HOME", str(folder / "home"))
    for edits, place, words in (*FILES[::12], *MACHINE[::3]):
        code, lines = told(folder, edits, [command])
        assert code == 2 and f":{place}: " in lines[0] and words in lines[0], lines
