"""What a command line gives: the simulation's file, and traces with their factors."""

from collections.abc import Sequence
from pathlib import Path

from ebbtide.config.load_section import load_section
from ebbtide_autoscaler.simulate.file import SimulationFile
from ebbtide_autoscaler.simulate.scene import Inputs, Named, read


def given(
    config: Path, serving: Sequence[tuple[Path, float, float]], jobs: Sequence[tuple[Path, float, float]]
) -> tuple[SimulationFile, Inputs]:
    """Both, read and sound.

    Raises:
        ConfigErrors: the file is wrong; holds every problem.
        BadTrace: a trace is.
    """
    return load_section(config, SimulationFile), read([Named(*one) for one in serving], [Named(*one) for one in jobs])
