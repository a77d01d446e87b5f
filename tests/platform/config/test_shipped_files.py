"""Every file in configs/ is a valid file of its kind."""

from pathlib import Path

import pytest

from ebbtide.config.loading.pool_file_loader import load
from ebbtide.config.loading.section_loader import load_section
from ebbtide_simulator.scenes.file import SimulationFile

CONFIGS = Path(__file__).parents[3] / "configs"
ALL = sorted(path for path in CONFIGS.iterdir() if path.suffix in {".yaml", ".yml"})
SIMULATIONS = [path for path in ALL if path.name.startswith("simulate_")]
FILES = [path for path in ALL if path not in SIMULATIONS]


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.name)
def test_a_shipped_file_loads_and_its_workloads_have_specs(file: Path) -> None:
    config = load(file)
    assert [job.spec() for job in config.jobs] + [endpoint.spec() for endpoint in config.endpoints]


@pytest.mark.parametrize("file", SIMULATIONS, ids=lambda path: path.name)
def test_a_shipped_simulation_has_as_many_slots_as_it_says(file: Path) -> None:
    pool = load_section(file, SimulationFile).pool
    assert pool.nodes * pool.gpus_per_node == int(file.stem.removeprefix("simulate_"))


def test_there_is_the_demo_and_nothing_but_yaml_and_the_folder_for_monitoring() -> None:
    assert CONFIGS / "demo.yaml" in FILES
    assert sorted(path for path in CONFIGS.iterdir() if path.name != "monitoring") == ALL


def test_the_demo_has_what_make_demo_relies_on() -> None:
    demo = load(CONFIGS / "demo.yaml")
    assert (demo.pool.name, demo.pool.slots) == ("demo", 3)
    assert [endpoint.name for endpoint in demo.endpoints] == ["tiny"]
    assert [job.name for job in demo.jobs] == ["stdlib-lm"]
