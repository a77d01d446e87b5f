"""A file is in force when it is journaled; one that is refused changes nothing."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ebbtide.config.root import PoolFile
from ebbtide_autoscaler.file_desk import FileDesk
from ebbtide_autoscaler.journal import CONFIGS_KEPT
from ebbtide_autoscaler.key_desk import KeyDesk


def a_file(shared_dir: str = "/shared", name: str = "p", **pool: Any) -> PoolFile:
    return PoolFile.model_validate({"pool": {"name": name, "shared_dir": Path(shared_dir), **pool}})


class Ledger:
    """Confirms at once, or breaks."""

    def __init__(self) -> None:
        self.records: list[Mapping[str, Any]] = []
        self.breaks = False

    async def write(self, payload: Mapping[str, Any]) -> None:
        if self.breaks:
            raise OSError("errno 28")
        self.records.append(payload)


def a_desk(ledger: Ledger) -> FileDesk:
    return FileDesk(Path("/shared"), KeyDesk(ledger.write), ledger.write)


async def test_a_file_is_journaled_once_and_the_last_ones_are_kept() -> None:
    ledger = Ledger()
    desk = a_desk(ledger)
    assert (desk.config, desk.json, desk.mode, desk.mode_since_s) == (None, "", "manage", 0.0)
    first = a_file()
    await desk.put(first)
    await desk.put(first)
    assert [record["config"] for record in ledger.records] == [desk.json] and desk.config == first
    assert desk.mode_since_s == 0.0, "managing is no news"
    await desk.put(a_file(mode="observe"))
    assert desk.mode == "observe" and desk.mode_since_s > 0.0
    for reserve in range(CONFIGS_KEPT + 1):
        await desk.put(a_file(reserve=reserve))
    assert len(desk.recent) == CONFIGS_KEPT and desk.recent[-1] == desk.json


@pytest.mark.parametrize(
    ("other", "why"), [(a_file(name="q"), "runs the pool p"), (a_file("/elsewhere"), "the file names /elsewhere")]
)
async def test_a_file_of_another_pool_is_refused(other: PoolFile, why: str) -> None:
    ledger = Ledger()
    desk = a_desk(ledger)
    await desk.put(a_file())
    before = desk.json
    with pytest.raises(ValueError, match=why):
        await desk.put(other)
    assert desk.json == before and len(ledger.records) == 1


async def test_a_file_that_the_ledger_does_not_take_is_not_in_force() -> None:
    ledger = Ledger()
    desk = a_desk(ledger)
    await desk.put(a_file())
    before = desk.json
    ledger.breaks = True
    with pytest.raises(OSError, match="errno 28"):
        await desk.put(a_file(reserve=1))
    assert desk.json == before and desk.recent == (before,)
