"""A session whose image does not fit on the disk: it is refused, or undone, and runs on; with room again it is parked.

The disk is a real one, and small; CRIU and the helper are real.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ebbtide.client.messages import DesiredState
from ebbtide_train.interactive.parking.helper_snapshots import HelperSnapshots
from ebbtide_train.interactive.supervision.session_states import SessionState
from tests.criu import criu_or_skip
from tests.small_disk import fill, grow, small_disk
from tests.train_jobs.interactive.chain import check
from tests.train_jobs.interactive.helped import Running, helped
from tests.train_jobs.interactive.kept import Kept, chain, lease, members

BALLAST_MIB = 16
# Fills the disk as CRIU begins to write, or when it has written all and the manifest is still to come.
FILLS = """#!/bin/sh
fill() { [ "$1" = dump ] && [ "$when" = "$2" ] && dd if=/dev/zero of="$small/fill" bs=64k 2>/dev/null; }
small=%s when=$(cat %s)
fill "$1" before
%s "$@"
code=$?
fill "$1" after
exit $code
"""


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small", "24m") as where:
        yield where.resolve()


def begun(small: Path, file: Path, helper: Running) -> Kept:
    """A session whose folder is on the small disk, and its own file elsewhere: it is the image that does not fit."""
    command = chain(file, ballast_mib=BALLAST_MIB)
    one = Kept(small, command, snapshots=HelperSnapshots(helper.client, "s")).start()
    one.reaches(SessionState.RUNNING)
    one.until(lambda: steps(file) > 3, "its first steps")
    return one


def steps(file: Path) -> int:
    return check(file.read_text().rpartition("\n")[0]) if file.exists() else 0


def refused(one: Kept, file: Path, holds: Callable[[str], bool]) -> None:
    """It is asked to park, says why it cannot, and nothing has become of it."""
    leader = one.leader()
    one.obeyed(one.gate.want(DesiredState.PARK))
    one.until(lambda: one.keeper.state is not SessionState.LEAVING, "it to be refused")
    assert holds(one.gate.reports[-1].park_refused), one.gate.reports[-1]
    assert one.keeper.state is SessionState.RUNNING and one.leader() == leader and leader.alive()
    before = steps(file)
    one.until(lambda: steps(file) > before + 3, "it to go on")
    assert one.holder() is not None
    assert list((one.place.folder / "images").iterdir()) == [], "half an image is left"


def parks_and_resumes(one: Kept, small: Path, file: Path) -> None:
    one.parks()
    before = steps(file)
    one.obeyed(one.gate.want(DesiredState.RUN, lease(2)))
    one.until(lambda: steps(file) > before, "it to go on")
    one.gate.want(DesiredState.CANCEL)
    one.ends()
    assert not members(small)


def test_an_image_that_will_not_fit_is_refused_before_anything_is_touched(tmp_path: Path, small: Path) -> None:
    (tmp_path / "helper").mkdir(mode=0o700)
    with helped(tmp_path / "helper", criu_or_skip().path) as helper:
        one = begun(small, tmp_path / "chain", helper)
        refused(one, tmp_path / "chain", lambda why: "does not fit" in why and "make room there" in why)
        assert '"op":"dump"' not in helper.journal.read_text(), "nobody was even stopped for it"
        grow(small, "128m")
        parks_and_resumes(one, small, tmp_path / "chain")


@pytest.mark.parametrize(("when", "says"), [("before", "No space left on device"), ("after", "is full")])
def test_a_disk_that_fills_up_while_the_image_is_written_undoes_it(
    tmp_path: Path, small: Path, when: str, says: str
) -> None:
    """Not even the session's own record can be written then."""
    grow(small, "96m")
    (tmp_path / "helper").mkdir(mode=0o700)
    (tmp_path / "when").write_text(when)
    program = tmp_path / "criu-that-fills"
    program.write_text(FILLS % (small, tmp_path / "when", criu_or_skip().path))
    program.chmod(0o700)
    with helped(tmp_path / "helper", program) as helper:
        one = begun(small, tmp_path / "chain", helper)
        refused(one, tmp_path / "chain", lambda why: "failed, and it runs on: " in why and says in why)
        assert helper.journal.read_text().count('"step":"undone"') == 1, "the journal tells the story"
        (tmp_path / "when").write_text("never")
        (small / "fill").unlink()
        parks_and_resumes(one, small, tmp_path / "chain")


def test_with_no_room_for_the_record_of_an_image_it_is_not_begun(tmp_path: Path, small: Path) -> None:
    grow(small, "96m")
    (tmp_path / "helper").mkdir(mode=0o700)
    with helped(tmp_path / "helper", criu_or_skip().path) as helper:
        one = begun(small, tmp_path / "chain", helper)
        full = fill(small)
        refused(one, tmp_path / "chain", lambda why: "does not take a record of it" in why)
        full.unlink()
        parks_and_resumes(one, small, tmp_path / "chain")
