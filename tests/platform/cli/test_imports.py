"""The command is quick because it imports little: no command loads what only others need.

Seconds are measured by `benchmarks.commands`; here it is what is imported, which does not depend on the machine.
"""

import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import run

import pytest

from ebbtide.cli.commands.completion import COMPLETE_VARIABLE
from ebbtide.cli.main import cli
from ebbtide.client.cluster_record import ClusterRecord, save_cluster
from ebbtide.system.runtime_dir import runtime_dir
from ebbtide_autoscaler.journal.status_record import subject_of, write_record

HEAVY = frozenset(
    {
        *("ray", "torch", "vllm", "transformers", "grpc", "aiohttp", "requests"),
        *("numpy", "pandas", "pyarrow", "numba", "matplotlib"),
        *("fastapi", "uvicorn", "prometheus_client", "fsspec", "httptools"),
    }
)
READ_BYTES = ("checkpoints", "doctor", "models", "probe")  # arrays are what they read into
PROGRAM = """
import atexit, sys
atexit.register(lambda: print("HEAVY", *sorted(set({heavy!r}) & set(sys.modules)), file=sys.stderr))
{body}
"""
MAIN = "from ebbtide.cli.main import main; main()"


def imported(body: str, *arguments: str, env: dict[str, str] | None = None) -> tuple[set[str], str]:
    """Which heavy modules a process has imported at its end, and what it printed."""
    code = PROGRAM.format(heavy=sorted(HEAVY), body=body)
    done = run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("HEAVY")]
    return set(line.split()[1:]), done.stdout


POOL = """
pool: {name: demo, slots: 2, shared_dir: SHARED}
endpoints:
  - {name: chat, model: SHARED/none, replicas: {min: 0, max: 1}, slo: {ttft_s: 1, tpot_s: 1},
     engine: {enforce_eager: true}}
jobs:
  - {name: a, entrypoint: 'os:getcwd', workers: {min: 1, max: 1}, global_batch: 1, micro_batch: 1}
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The environment of a user whose pool has left its status on this machine a moment ago."""
    pool = f"record{os.getpid()}"
    env = {"EBBTIDE_HOME": str(tmp_path / "home")}
    monkeypatch.setenv("EBBTIDE_HOME", env["EBBTIDE_HOME"])
    record = ClusterRecord(pool, "127.0.0.1:1", "", "http://h", str(tmp_path / "shared"), "")
    save_cluster(record)
    folder = runtime_dir(pool)
    folder.mkdir(parents=True)
    now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    subject = subject_of(record.pool, record.shared_dir, record.address)
    write_record(folder, subject, {"pool": pool, "arbiter": {"epoch": 7, "frozen": ""}}, since_boot_s=now_s)
    yield env
    shutil.rmtree(folder)


@pytest.mark.parametrize("words", ["", "--help", "--version", "schema", "completion bash", "statsu", "up --help"])
def test_a_command_imports_nothing_heavy(words: str) -> None:
    assert imported(MAIN, *words.split())[0] == set()


LOAD_ALL = """
from ebbtide.cli.command_plugins import load_command
from ebbtide.cli.main import cli
seen = set()
for name, listed in sorted(cli.listed.items(), key=lambda item: item[0] in {last!r}):
    load_command(listed)
    print(name, *sorted((set({heavy!r}) & set(sys.modules)) - seen))
    seen |= set(sys.modules)
"""


def test_no_command_imports_anything_heavy_before_it_has_something_to_do() -> None:
    """So that help and completion of options are quick too; what reads bytes may import arrays."""
    _, printed = imported(LOAD_ALL.format(last=READ_BYTES, heavy=sorted(HEAVY)))
    new = {line.split()[0]: set(line.split()[1:]) for line in printed.splitlines()}
    assert set(new) == set(cli.listed)
    for name, heavy in new.items():
        assert heavy <= ({"numpy", "fsspec"} if name in READ_BYTES else set()), name


@pytest.mark.parametrize(
    ("options", "extra", "told"),
    [
        ((), "", "SHARED/none"),
        (("--offline",), "", "valid"),
        (("--offline",), "nonsense: 1\n", "nonsense"),
    ],
)
def test_a_file_is_checked_without_anything_heavy(
    tmp_path: Path, options: tuple[str, ...], extra: str, told: str
) -> None:
    (tmp_path / "pool.yaml").write_text(POOL.replace("SHARED", str(tmp_path)) + extra)
    heavy, printed = imported(MAIN, "validate", str(tmp_path / "pool.yaml"), "--json", *options)
    assert heavy == set() and told.replace("SHARED", str(tmp_path)) in printed


@pytest.mark.parametrize("words", ["status", "status --json"])
def test_status_comes_from_the_record_without_ray(home: dict[str, str], words: str) -> None:
    heavy, printed = imported(MAIN, *words.split(), env=home)
    assert heavy == set()
    assert ('"kind": "record"' if "json" in words else "as the arbiter left it on this machine") in printed


@pytest.mark.parametrize("name", ["up", "submit", "status", "keys"])
def test_a_shell_completes_the_options_of_a_command_quickly(name: str) -> None:
    typed = {COMPLETE_VARIABLE: "bash_complete", "COMP_WORDS": f"ebbtide {name} --", "COMP_CWORD": "2"}
    heavy, printed = imported(MAIN, env=typed)
    assert heavy == set()
    assert "plain,--help" in printed
