"""Room on the shared directory, with a deadline."""

import time
from pathlib import Path

from ebbtide.diagnostics.probe.disk_facts import disk_fact
from ebbtide.snapshot.tiers import Means


def test_room_is_told(tmp_path: Path) -> None:
    left, fact = disk_fact(str(tmp_path), room=lambda folder: 5 * 10**9)
    assert left == 5 * 10**9 and fact.what == "the shared directory has room for 5 GB" and not fact.hinders


def test_a_directory_that_is_still_to_be_made_has_the_room_of_where_it_will_be(tmp_path: Path) -> None:
    left, fact = disk_fact(str(tmp_path / "new" / "shared"))
    assert left and not fact.hinders and not (tmp_path / "new").exists()


def test_no_directory_and_one_that_hangs_are_in_the_way() -> None:
    def hangs(_folder: Path) -> int:
        time.sleep(1)
        return 1

    for left, fact in (disk_fact(""), disk_fact("/", room=hangs, look_s=0.05)):
        assert left is None and fact.hinders == {Means.STORAGE} and fact.remedy
