"""Forty commands as a newcomer gets them wrong: exit code 2, one error that says what to do, and nothing is changed."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from ebbtide.cli.main import cli
from ebbtide_quickstart.pool_draft import PoolDraft, pool_text

NO_POOL = "no running pool is on record in"
START = "start one: ebbtide up FILE"
TWO_JOBS = "jobs:\n" + "".join(
    f"  - {{name: {name}, entrypoint: 'train:train', working_dir: code, "
    "workers: {min: 1, max: 1}, global_batch: 1, micro_batch: 1}\n"
    for name in "ab"
)

COMMANDS: list[tuple[str, tuple[str, ...]]] = [
    ("statsu", ("No such command 'statsu'", "Did you mean 'status'?")),
    ("up", ("give either a FILE or --rollback",)),
    ("up nowhere.yaml", ("nowhere.yaml:1:1: cannot be read", "`ebbtide init nowhere.yaml` writes one")),
    ("up code", ("is a directory",)),
    ("up pool.yaml --rollback", ("give either a FILE or --rollback",)),
    ("up --rollback", (NO_POOL, START)),
    ("up wrong.yaml", ("wrong.yaml:1:20", "did you mean 'slots'?")),
    ("up pool.yaml extra.yaml", ("unexpected extra argument (extra.yaml)",)),
    ("plan", ("give a FILE to see what `ebbtide up` would change",)),
    ("plan pool.yaml --at +1h", ("give a FILE", "or --at")),
    ("plan --at 25:00", ("'25:00' is no time: write +30m, +2h",)),
    ("plan --at tomorrow", ("'tomorrow' is no time: write +30m",)),
    ("validate", ("Missing argument 'FILE'",)),
    ("validate nowhere.yaml", ("cannot be read", "`ebbtide init nowhere.yaml` writes one")),
    ("submit", ("Missing argument 'FILE'",)),
    ("submit pool.yaml", ("no running pool mine is on record in", START)),
    ("submit pool.yaml --job nope", ("no job 'nope'; it has pretrain",)),
    ("submit two.yaml", ("has 2 jobs (a, b): say which with --job NAME",)),
    ("submit serve.yaml", ("the file has no jobs: add one under `jobs`",)),
    ("status", (NO_POOL, START)),
    ("status --jsn", ("No such option '--jsn'", "Did you mean '--json'?")),
    ("status --pool other", ("no running pool other is on record", START)),
    ("park", ("Missing argument 'NAME'",)),
    ("park pretrain", (NO_POOL, START)),
    ("resume pretrain", (NO_POOL, START)),
    ("cancel pretrain", (NO_POOL, START)),
    ("drain node1", (NO_POOL, START)),
    ("logs pretrain", (NO_POOL, START)),
    ("why", ("Missing argument 'SUBJECT'",)),
    ("why pretrain", (NO_POOL, START, "or name its directory with --shared-dir")),
    ("events --limit many", ("'many' is not a valid integer",)),
    ("keys creat", ("No such command 'creat'", "Did you mean 'create'?")),
    ("keys create", ("Missing argument 'NAME'",)),
    ("keys create alice --rpm -5", ("-5 is not in the range",)),
    ("keys create alice --scope everything", ("'everything' is not one of 'admin', 'inference'",)),
    ("run", ("Missing argument 'COMMAND...'",)),
    ("run --gpus 0 -- sleep 1", ("a session has one GPU; run one session for each",)),
    ("down --pool other", ("no running pool other is on record",)),
    ("checkpoints list pretrain", (NO_POOL, "or name its directory with --shared-dir")),
    ("models list", (NO_POOL, "or name its directory with --shared-dir")),
    ("models import nowhere --shared-dir .", ("there is no directory",)),
    ("models import hf://one --shared-dir .", ("names no model of the hub: write hf://org/name",)),
    ("models rm nope --shared-dir .", ("bring one in: ebbtide models import SOURCE",)),
    ("models gc --grace soon --shared-dir .", ("'soon' is no duration: write 90s, 30min, 2h or 1d",)),
    ("doctor nowhere", ("there is no directory nowhere",)),
    ("simulate nowhere.yaml", ("name traffic by --serving FILE",)),
    ("init", ("pool.yaml is there already: name another file, or replace it with --force",)),
    ("init mine.yaml --gpus 0", ("0 is not in the range",)),
    ("demo", ("give --quick",)),
    ("completion fishy", ("'fishy' is not one of 'bash', 'zsh', 'fish'",)),
]
JARGON = re.compile(r"Traceback|NoneType|pydantic|nobody|whoever|reckon|hinder", re.IGNORECASE)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EBBTIDE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("def train(args): ...\n")
    (tmp_path / "pool.yaml").write_text(pool_text(PoolDraft()))
    (tmp_path / "wrong.yaml").write_text("pool: {name: mine, slot: 2, shared_dir: shared}\n")
    (tmp_path / "serve.yaml").write_text("pool: {name: mine, shared_dir: shared}\nendpoints: [{name: a, model: m:1}]\n")
    (tmp_path / "two.yaml").write_text("pool: {name: mine, shared_dir: shared}\n" + TWO_JOBS)
    return tmp_path


@pytest.mark.parametrize(("words", "said"), COMMANDS, ids=[words for words, _ in COMMANDS])
def test_a_wrong_command_says_what_to_do_and_changes_nothing(folder: Path, words: str, said: tuple[str, ...]) -> None:
    before = {path: path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}
    result = CliRunner().invoke(cli, shlex.split(words))
    assert result.exit_code == 2, result.output
    assert result.stdout == "" and all(one in result.stderr for one in said), result.output
    assert not JARGON.search(result.stderr)
    assert sum(line.startswith("Error: ") or line.endswith(" problem") for line in result.stderr.splitlines()) == 1
    assert {path: path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")} == before
