"""What a run leaves on the shared directory: weights and training state, read back by the commands that people use."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.pool_run import RunFailed


def read_back(shared: Path, job: str) -> dict[str, Any]:
    """Compare all models and the job's newest checkpoint with their hashes; what there is, in figures.

    Raises:
        RunFailed: something is damaged, or not there.
    """
    models = _said("models", "verify", "--all", shared=shared)["models"]
    checkpoint = _said("checkpoints", "verify", job, shared=shared)
    committed = [one for one in _said("checkpoints", "list", job, shared=shared)["checkpoints"] if one["counts"]]
    return {
        "models": len(models),
        "model_bytes": sum(one["size_bytes"] for one in models),
        "checkpoint": checkpoint["checkpoint"],
        "checkpoint_bytes": committed[0]["size_bytes"],
        "damaged": sum(len(one["damage"]) for one in (*models, checkpoint)),
    }


def _said(*arguments: str, shared: Path) -> Any:
    command = [sys.executable, "-m", "ebbtide.cli", *arguments, "--shared-dir", str(shared), "--json"]
    done = subprocess.run(command, env=os.environ, timeout=300, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise RunFailed(f"`ebbtide {' '.join(arguments)}` ended with {done.returncode}: {done.stdout.strip()}")
    return json.loads(done.stdout)
