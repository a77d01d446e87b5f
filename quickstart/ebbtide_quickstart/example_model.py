"""The small random model, made by a process of its own: PyTorch and transformers take seconds to import."""

import subprocess
import sys
from pathlib import Path

from ebbtide.cli.terminal.errors import CommandFailed
from ebbtide_serve.vllm_versions.supported import other_builds

MODULE = "ebbtide_serve.examples.tiny_model"
MAKING_S = 300.0  # 8 s on 2 cores; a machine at its limit takes minutes


def make_example_model(folder: Path) -> None:
    """Make the model directory, or leave the one that is there.

    Raises:
        CommandFailed: it cannot be made; the message ends with the reason.
    """
    if fault := other_builds():
        raise CommandFailed(fault)
    command = [sys.executable, "-m", MODULE, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=MAKING_S)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise CommandFailed(
            f"the example model cannot be made: {last}; it needs vLLM's packages "
            "(pip install 'ebbtide[cpu]' or 'ebbtide[gpu]'), or name your own with --model"
        )
