"""One directory for each replica, and none left of the dead."""

import os
from pathlib import Path

from ebbtide.system.process import started_ticks
from ebbtide_serve.compile_cache.cache_dir import cache_environment, own_directory, remove_left_over


def me() -> tuple[int, int]:
    started = started_ticks(os.getpid())
    assert started is not None
    return os.getpid(), started


def test_no_two_replicas_share_a_directory(tmp_path: Path) -> None:
    one, other = own_directory(tmp_path, *me()), own_directory(tmp_path, *me())
    assert one != other
    places = [Path(place) for directory in (one, other) for place in cache_environment(directory).values()]
    assert len(set(places)) == len(places)
    assert all(one in place.parents or other in place.parents for place in places)


def test_directories_of_the_dead_go_and_no_others(tmp_path: Path) -> None:
    pid, started = me()
    living = own_directory(tmp_path, pid, started)
    dead = own_directory(tmp_path, pid, started - 1)  # the number was used again
    half = dead.with_name(dead.name + ".part")
    stranger = tmp_path / "modelinfos"
    for path in (living, dead, half, stranger):
        (path / "inner").mkdir(parents=True)
    assert set(remove_left_over(tmp_path)) == {dead, half}
    assert set(tmp_path.iterdir()) == {living, stranger}
    assert remove_left_over(tmp_path / "nowhere") == []
