"""The last lines of a worker's output, bounded."""

from pathlib import Path

from ebbtide_train.controller.failed_rank_output import failed_rank_output
from ebbtide_train.controller.gang import Member
from ebbtide_train.output_tail import cut_tail, tail


def test_the_end_of_each_file_is_kept_without_rays_own_marks(tmp_path: Path) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    out.write_text(":actor_name:RayTrainWorker\nstep 1\n\nstep 2\n")
    err.write_text("Traceback\n  in train\n:task_name:run\nBoom\n")
    assert tail([str(out), str(err), str(tmp_path / "none")]) == "step 1\nstep 2\nTraceback\n  in train\nBoom"


def test_a_long_output_is_cut_at_a_line(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("".join(f"line {number}\n" for number in range(100_000)))
    found = tail([str(out)], chars=2000)
    assert len(found) <= 2000
    assert found.splitlines()[0].startswith("line ") and found.splitlines()[-1] == "line 99999"
    assert cut_tail("x" * 50, 10) == "x" * 10


def member(node: str, *printed: Path) -> Member:
    return Member(None, node, 1, 1, tuple(map(str, printed)))


def test_only_failed_ranks_speak_and_those_of_other_nodes_are_asked_there(tmp_path: Path) -> None:
    for rank in range(3):
        (tmp_path / f"{rank}").write_text(f"rank {rank} says\n" * 1000)
    members = [member("here", tmp_path / "0"), member("there", tmp_path / "1"), member("here", tmp_path / "2")]
    asked: list[tuple[str, tuple[str, ...]]] = []

    def there(node: str, paths: tuple[str, ...], *, chars: int) -> str:
        asked.append((node, paths))
        return "from there"

    found = failed_rank_output(members, [1, 2, -1], here="here", there=there)
    assert asked == [("there", (str(tmp_path / "1"),))]
    assert found.startswith("-- rank 1 --\nfrom there\n-- rank 2 --\nrank 2 says\n")
    assert "rank 0" not in found and len(found) <= 2000


def test_a_failed_controller_has_no_ranks_to_quote() -> None:
    assert failed_rank_output([], [-1], here="here") == ""
