"""The README played word by word, as a newcomer would who copies each block into one shell of a fresh clone.

Every ``bash`` block runs in order, but those of the long demo and the test suites; the ``python`` block becomes
code/train.py. The environment has nothing of ours in it. What comes out is looked at as a person would.
"""

import json
import os
import re
import shlex
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT_S = 600.0  # of an hour, on 2 cores without a GPU
LEFT_OUT = ("make demo",)  # with `make test`: what to run to see that it works, 20 minutes together
# Where packages come from is the machine's own business; nothing else of this environment reaches a newcomer's shell.
KEPT = re.compile(r"PATH|HOME|LANG|SSL_CERT_FILE|(PIP|UV)_\w+")

# What a person does between two lines: looks until the job has trained a while, before it is parked.
LOOK = """
for _ in $(seq 240); do
  step=$(ebbtide status --json | python -c 'import json, sys
print(next((job["step"] for job in json.load(sys.stdin)["jobs"]), 0))')
  [ "$step" -ge 20 ] && break
  sleep 0.5
done
"""


def blocks(kind: str) -> list[str]:
    """The fenced blocks of one kind, in order."""
    return re.findall(rf"```{kind}\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def script(folder: Path) -> str:
    """One shell script of all blocks."""
    lines = ["set -euo pipefail"]
    for block in blocks("bash"):
        if block.startswith(LEFT_OUT):
            continue
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("ebbtide park"):
                lines += [LOOK]
            lines += [f"echo {shlex.quote('$ ' + line.partition('  #')[0])} >&2", line]
            if line.startswith("ebbtide init"):
                lines += [f"cp {folder / 'train.py'} code/train.py"]
    return "\n".join(lines)


@pytest.mark.ray
@pytest.mark.vllm
@pytest.mark.hunt
@pytest.mark.timeout(1500)
def test_a_newcomer_gets_an_answer_and_a_job_that_parks_and_resumes(tmp_path: Path) -> None:
    clone = tmp_path / "ebbtide"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    (code,) = blocks("python")
    (tmp_path / "train.py").write_text(code)
    home = tmp_path / "home"
    home.mkdir()
    env = {name: value for name, value in os.environ.items() if KEPT.fullmatch(name)} | {"EBBTIDE_HOME": str(home)}
    env["PATH"] = os.pathsep.join(part for part in env["PATH"].split(os.pathsep) if ".venv" not in part)
    began_s = time.monotonic()
    done = subprocess.run(
        ["bash", "-c", script(tmp_path)], cwd=clone, env=env, capture_output=True, text=True, timeout=2 * LIMIT_S
    )
    took_s = time.monotonic() - began_s
    print(done.stdout, done.stderr, f"{took_s:.0f} s")
    assert done.returncode == 0
    told = next(line for line in done.stdout.splitlines() if line.startswith('{"id"'))
    answer, _ = json.JSONDecoder().raw_decode(told)  # the next command's output follows on the line, as in a shell
    assert answer["usage"]["completion_tokens"] > 0
    assert re.search(r"job pretrain is parked in place after step \d+", done.stdout + done.stderr)
    assert re.search(r"job pretrain runs on \d slots?, \d+ steps done", done.stdout + done.stderr)
    assert "is released by" in done.stdout  # `why` tells of it
    assert not (home / "mine" / "cluster.json").exists()
    assert subprocess.run(["pgrep", "-f", str(clone)], capture_output=True, text=True).stdout == ""
    assert took_s < LIMIT_S, "it is longer than a newcomer is promised"
