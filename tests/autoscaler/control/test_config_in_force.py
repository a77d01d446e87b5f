"""A file is in force when it is journaled; one that is refused changes nothing."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ebbtide.config.pool_file import PoolFile
from ebbtide.config.sections.pool_section import PoolMode
from ebbtide.storage.objects.store_limits import LIMITS, limits_of
from ebbtide_autoscaler.control.config_in_force import ConfigInForce
from ebbtide_autoscaler.control.key_changes import KeyChanges
from ebbtide_autoscaler.journal.records import CONFIGS_KEPT


def a_file(shared_dir: Path, name: str = "p", **pool: Any) -> PoolFile:
    return PoolFile.model_validate({"pool": {"name": name, "shared_dir": shared_dir, **pool}})


class Ledger:
    """Confirms at once, or breaks."""

    def __init__(self) -> None:
        self.records: list[Mapping[str, Any]] = []
        self.breaks = False

    async def write(self, payload: Mapping[str, Any]) -> None:
        if self.breaks:
            raise OSError("errno 28")
        self.records.append(payload)


def a_desk(shared_dir: Path, ledger: Ledger) -> ConfigInForce:
    return ConfigInForce(shared_dir, KeyChanges(ledger.write), ledger.write)


async def test_a_file_is_journaled_once_and_the_last_ones_are_kept(tmp_path: Path) -> None:
    ledger = Ledger()
    desk = a_desk(tmp_path, ledger)
    assert (desk.config, desk.json, desk.mode, desk.mode_since_s) == (None, "", PoolMode.MANAGE, 0.0)
    first = a_file(tmp_path)
    await desk.put(first)
    await desk.put(first)
    assert [record["config"] for record in ledger.records] == [desk.json] and desk.config == first
    assert desk.mode_since_s == 0.0, "managing is no news"
    await desk.put(a_file(tmp_path, mode=PoolMode.OBSERVE))
    assert desk.mode is PoolMode.OBSERVE and desk.mode_since_s > 0.0
    for reserve in range(CONFIGS_KEPT + 1):
        await desk.put(a_file(tmp_path, reserve=reserve))
    assert len(desk.recent) == CONFIGS_KEPT and desk.recent[-1] == desk.json


@pytest.mark.parametrize(("name", "place", "why"), [("q", "", "runs the pool p"), ("p", "else", "the file names /.*e")])
async def test_a_file_of_another_pool_is_refused(tmp_path: Path, name: str, place: str, why: str) -> None:
    ledger = Ledger()
    desk = a_desk(tmp_path, ledger)
    await desk.put(a_file(tmp_path))
    before = desk.json
    with pytest.raises(ValueError, match=why):
        await desk.put(a_file(tmp_path / place, name))
    assert desk.json == before and len(ledger.records) == 1


async def test_a_file_that_the_ledger_does_not_take_is_not_in_force(tmp_path: Path) -> None:
    ledger = Ledger()
    desk = a_desk(tmp_path, ledger)
    await desk.put(a_file(tmp_path))
    before = desk.json
    ledger.breaks = True
    with pytest.raises(OSError, match="errno 28"):
        await desk.put(a_file(tmp_path, reserve=1))
    assert desk.json == before and desk.recent == (before,)


async def test_what_the_file_allows_of_the_shared_directory_is_found_there_before_the_file_is_in_force(
    tmp_path: Path,
) -> None:
    class Looking(Ledger):
        async def write(self, payload: Mapping[str, Any]) -> None:
            await super().write(payload)
            seen.append(limits_of(tmp_path).models.max_bytes)

    seen: list[int | None] = []
    ledger = Looking()
    desk = a_desk(tmp_path, ledger)
    for models_max in (10**12, None):
        await desk.put(a_file(tmp_path, storage={"models_max": models_max}))
    assert seen == [10**12, None]
    (tmp_path / LIMITS).unlink()
    await desk.put(a_file(tmp_path))
    assert (tmp_path / LIMITS).exists() and len(ledger.records) == 2, "the same file again mends it"


async def test_a_directory_that_takes_nothing_keeps_a_file_from_coming_into_force(tmp_path: Path) -> None:
    ledger = Ledger()
    desk = a_desk(tmp_path, ledger)
    (tmp_path / LIMITS).mkdir()
    with pytest.raises(ValueError, match=f"cannot be put into force: .*{LIMITS}"):
        await desk.put(a_file(tmp_path))
    assert desk.config is None and ledger.records == []
