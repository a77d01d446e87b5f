"""Traces, files and scenes for simulations."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from click.testing import CliRunner, Result

from ebbtide_autoscaler.core.plan.inputs import PolicyConfig
from ebbtide_simulator import play
from ebbtide_simulator.command import simulate
from ebbtide_simulator.model.engine import ENGINES
from ebbtide_simulator.policies.contenders import CONTENDERS
from ebbtide_simulator.run.run import Outcome, Run, Scene
from ebbtide_simulator.scenes.file import SimulationFile
from ebbtide_simulator.scenes.scene import Inputs, Named, scene
from ebbtide_simulator.traffic.traces import Array, Jobs, Rates, Requests


def written(folder: Path, columns: Mapping[str, Sequence[object]]) -> Path:
    """A trace of these columns."""
    path = folder / "trace.parquet"
    pyarrow.parquet.write_table(pyarrow.table(dict(columns)), path)
    return path


Columns = Mapping[str, Sequence[object]]


CONFIG = """
pool: {nodes: 1, gpus_per_node: 4}
endpoints: [{name: chat, prompt_tokens: 500, output_tokens: 100}]
run: {warm_up_s: 0}
"""


MINUTES = 90


MISUSED = 2


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str, str]:
    """A configuration, traffic and jobs, of an hour and a half."""
    (tmp_path / "pool.yaml").write_text(CONFIG)
    (tmp_path / "jobs").mkdir()
    at_s = np.arange(MINUTES) * 60.0
    wave = 600 + 500 * np.sin(at_s / 900)
    rates: Columns = {"t_s": at_s.tolist(), "rpm_mid": wave.tolist(), "rpm_sigma": [20.0] * MINUTES}
    jobs: Columns = {"submit_s": [0.0, 60.0, 120.0], "gpus": [1, 2, 1], "duration_s": [1800.0, 900.0, 3600.0]}
    return str(tmp_path / "pool.yaml"), str(written(tmp_path, rates)), str(written(tmp_path / "jobs", jobs))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(simulate, list(arguments))


def refusal(*arguments: str) -> str:
    """What it says instead of playing: one error, and the exit code of misuse."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(play, "ProcessPoolExecutor", lambda *_args, **_named: pytest.fail("it plays"))
        found = run(*arguments)
    assert found.exit_code == MISUSED, found.exception or found.output
    assert found.output.count("Error: ") == 1
    assert "Traceback" not in found.output
    return found.output


TOKENS = (1000, 200)


REPLICA_PER_S = ENGINES["llama-8b-h100"].full / ENGINES["llama-8b-h100"].work_s(*TOKENS)  # requests that make one full


def file_of(endpoints: int = 1, *, nodes: int = 1, per_node: int = 4, **run: Any) -> SimulationFile:
    return SimulationFile.model_validate(
        {
            "pool": {"nodes": nodes, "gpus_per_node": per_node},
            "endpoints": tuple({"name": f"e{number}"} for number in range(endpoints)),
            "run": {"warm_up_s": 0.0} | run,
        }
    )


def replicas(by_minute: Sequence[float]) -> Rates:
    """Requests that keep this number of replicas full, minute by minute."""
    count = len(by_minute)
    at_s: Array = np.array([60.0 * minute for minute in range(count)])
    unknown = np.full(count, np.nan)
    per_s: Array = np.array([one * REPLICA_PER_S for one in by_minute])
    return Rates(at_s, per_s, np.zeros(count), unknown, unknown)


def drawn(
    file: SimulationFile,
    *traces: Rates | Requests,
    jobs: Sequence[Jobs] = (),
    factor: float = 1.0,
    from_day: Sequence[float] = (0.0, 0.0),
    seed: int = 0,
) -> Scene:
    serving = tuple(
        (Named(Path(f"t{n}.parquet"), factor, day), one)
        for n, (one, day) in enumerate(zip(traces, from_day, strict=False))
    )
    return scene(file, Inputs(serving, tuple((Named(Path("jobs.parquet")), one) for one in jobs)), seed)


def played(scene: Scene, name: str) -> Outcome:
    """One contender's run."""
    play = CONTENDERS[name](scene, PolicyConfig())
    return Run(play.scene, play.contender, play.config).outcome()
