"""What a command line gives: the simulation's file, and traces with their factors, or a ledger."""

from collections.abc import Sequence
from pathlib import Path

from ebbtide.config.loading.section_loader import load_section
from ebbtide_simulator.recorded.recording import Stretch, read_recording
from ebbtide_simulator.recorded.replay_file import ReplayFile
from ebbtide_simulator.scenes.file import SimulationFile
from ebbtide_simulator.scenes.replay import Recorded
from ebbtide_simulator.scenes.scene import FACTOR_MAX, Inputs, Named, read
from ebbtide_simulator.traffic.trace_files import BadTrace


def load_inputs(
    config: Path, serving: Sequence[tuple[Path, float, float]], jobs: Sequence[tuple[Path, float, float]]
) -> tuple[SimulationFile, Inputs]:
    """Both, read and sound.

    Raises:
        ConfigErrors: the file is wrong; holds every problem.
        BadTrace: a trace is.
    """
    return load_section(config, SimulationFile), read([Named(*one) for one in serving], [Named(*job) for job in jobs])


def load_ledger(config: Path, folder: Path, factor: float, from_day: float) -> tuple[ReplayFile, Recorded]:
    """What is other than it was, and what happened.

    Raises:
        ConfigErrors: the file is wrong; holds every problem.
        BadTrace: the folder has no ledger that could be played again.
    """
    file = load_section(config, ReplayFile)
    if not 0 < factor <= FACTOR_MAX:
        can = f"by more than 0 and up to {FACTOR_MAX:g} it can"
        raise BadTrace(f"{folder}: demand cannot be multiplied by {factor:g}; {can}")
    if not from_day >= 0:
        raise BadTrace(f"{folder}: it cannot begin on day {from_day:g}")
    span_s = None if file.run.hours_max is None else file.run.hours_max * 3600
    return file, Recorded(read_recording(folder, Stretch(from_day=from_day, span_s=span_s)), factor, from_day)
