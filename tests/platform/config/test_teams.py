"""Teams in the file: what is refused, with the numbers."""

from pathlib import Path

import pytest

from ebbtide.config.errors import ConfigErrors
from ebbtide.config.loading.pool_file_loader import load

FILE = """pool: {{name: demo, slots: {slots}, shared_dir: shared, reserve: 1}}
endpoints:
  - {{name: chat, model: m:1, replicas: {{min: 2, max: 2}}, gpus_per_replica: 2}}
jobs:
  - {{name: lm, entrypoint: "a:b", workers: {{min: 3, max: 6}}, team: text, global_batch: 6, micro_batch: 1}}
teams:
  - {{name: text, {text}}}
  - {{name: vision, {vision}}}
"""


def problems(tmp_path: Path, *, slots: str = "16", text: str = "guarantee: 4", vision: str = "weight: 2") -> list[str]:
    path = tmp_path / "pool.yaml"
    path.write_text(FILE.format(slots=slots, text=text, vision=vision))
    try:
        load(path)
    except ConfigErrors as errors:
        return [str(one).partition("pool.yaml:")[2] for one in errors.problems]
    return []


def test_what_fits_is_taken(tmp_path: Path) -> None:
    assert problems(tmp_path, text="guarantee: 11, quota: 11") == []
    assert problems(tmp_path, slots="all", text="guarantee: 1100") == []


@pytest.mark.parametrize(
    ("parts", "place", "words"),
    [
        (
            {"text": "guarantee: 8", "vision": "guarantee: 4"},
            "teams[1].guarantee",
            "teams are promised 12 slots up to here, and 11 can be promised: the pool has 16, 4 are for replicas that "
            "always run, and the reserve is 1",
        ),
        ({"text": "guarantee: 5, quota: 4"}, "teams[0].quota", "quota is 4, less than guarantee, which is 5"),
        ({"text": "quota: 2"}, "jobs[0].workers.min", "min is 3, and the quota of team text is 2 slots"),
        ({"text": "weight: 0"}, "teams[0].weight", "greater than 0"),
        ({"text": "weight: .nan"}, "teams[0].weight", ""),
        ({"text": "guarantee: -1"}, "teams[0].guarantee", "greater than or equal to 0"),
        ({"text": "guarante: 1"}, "teams[0].guarante", "did you mean 'guarantee'?"),
    ],
)
def test_what_does_not_is_refused_with_the_numbers(
    tmp_path: Path, parts: dict[str, str], place: str, words: str
) -> None:
    (found,) = problems(tmp_path, **parts)
    assert f" {place}: " in found and words in found


def test_a_team_may_not_be_called_what_all_the_rest_is(tmp_path: Path) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text(FILE.format(slots=16, text="weight: 1", vision="weight: 1").replace("vision", "others"))
    with pytest.raises(ConfigErrors, match="are the teams that are not listed"):
        load(path)


def test_two_teams_of_one_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text(FILE.format(slots=16, text="weight: 1", vision="weight: 1").replace("vision", "text"))
    with pytest.raises(ConfigErrors, match="already taken by"):
        load(path)


def test_of_all_of_a_cluster_it_is_told_once_they_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text(FILE.format(slots="all", text="guarantee: 8", vision="guarantee: 4"))
    config = load(path)
    assert config.beyond(17) == []
    (one,) = config.beyond(16)
    assert one.startswith("teams[1].guarantee: teams are promised 12 slots up to here, and 11 can be promised")
    few = config.beyond(6)
    assert any(
        one.startswith("jobs[0].workers.min: min is 3, and jobs can have at most 1 slots (6 less") for one in few
    )
