"""Every file in configs/ is a valid file."""

from pathlib import Path

import pytest

from ebbtide.config.load import load

CONFIGS = Path(__file__).parents[3] / "configs"
FILES = sorted(path for path in CONFIGS.iterdir() if path.suffix in {".yaml", ".yml"})


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.name)
def test_a_shipped_file_loads_and_its_workloads_have_specs(file: Path) -> None:
    config = load(file)
    assert [job.spec() for job in config.jobs] + [endpoint.spec() for endpoint in config.endpoints]


def test_there_is_the_demo_and_nothing_but_yaml_and_the_folder_for_monitoring() -> None:
    assert CONFIGS / "demo.yaml" in FILES
    assert sorted(path for path in CONFIGS.iterdir() if path.name != "monitoring") == FILES


def test_the_demo_has_what_make_demo_relies_on() -> None:
    demo = load(CONFIGS / "demo.yaml")
    assert (demo.pool.name, demo.pool.slots) == ("demo", 3)
    assert [endpoint.name for endpoint in demo.endpoints] == ["tiny"]
    assert [job.name for job in demo.jobs] == ["stdlib-lm"]
