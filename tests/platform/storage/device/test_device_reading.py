"""Published objects into device memory: as their authors wrote them, or one error."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from ebbtide.storage.device.device_reading import load_tensors, read_to_device
from ebbtide.storage.device.device_transport import DeviceTransport
from ebbtide.storage.device.gds_transport import GdsSettings, GdsTransport
from ebbtide.storage.device.placements import Placement, place
from ebbtide.storage.device.staged_transport import StagedTransport
from ebbtide.storage.errors import Corrupt, NotPublished, Refused, TransferFailed
from ebbtide.storage.objects.stored_file import StoredFile
from ebbtide.storage.posix.posix_transport import PosixTransport
from ebbtide.storage.transport.transfer_report import TransferReport
from tests.platform.storage.device_fakes import BadFiles, LateQueue, flip
from tests.platform.storage.stale import stale_at
from tests.platform.storage.stores import CHUNK, POOL, publish_model, store_at, tensors

FILE = "model.safetensors"
TRANSPORTS: dict[str, Callable[[], DeviceTransport]] = {
    "staged": lambda: StagedTransport(PosixTransport(POOL, threads=2), LateQueue()),
    "gds": lambda: GdsTransport(BadFiles(), LateQueue(), GdsSettings(2, CHUNK), stats=Path("/none")),
}


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> DeviceTransport:
    return TRANSPORTS[request.param]()


def test_all_tensors_of_a_model_come_as_they_were_published(tmp_path: Path, transport: DeviceTransport) -> None:
    store = store_at(tmp_path / "store")
    with store.open(publish_model(store)) as found:
        loaded, report = load_tensors(found, FILE, transport)
        assert loaded.keys() == tensors().keys()
        for name, value in tensors().items():
            np.testing.assert_array_equal(loaded[name].numpy(), value)
        assert report.bytes == found.manifest.file(FILE).size_bytes


def test_tensors_go_into_the_parameters_of_a_model(tmp_path: Path, transport: DeviceTransport) -> None:
    store = store_at(tmp_path / "store")
    with store.open(publish_model(store)) as found:
        entries = {entry.name: entry for entry in found.header(FILE).entries}
        weight = torch.nn.Parameter(torch.zeros(128, 512))
        read_to_device(found, FILE, transport, [place(entries["layer.weight"].offset, weight)])
        np.testing.assert_array_equal(weight.detach().numpy(), tensors()["layer.weight"])


def test_damage_is_corrupt_and_a_removed_object_is_not_published(tmp_path: Path, transport: DeviceTransport) -> None:
    store = store_at(tmp_path / "store")
    object_id = publish_model(store)
    path = store.paths.object(object_id) / FILE
    with store.open(object_id) as found:
        found.header(FILE)
        flip(path, CHUNK + 1)
        with pytest.raises(Corrupt, match=rf"at byte {CHUNK}: chunk of .* of object {object_id} is not"):
            load_tensors(found, FILE, transport)
        os.truncate(path, CHUNK)
        with pytest.raises((TransferFailed, Corrupt), match="at byte"):
            load_tensors(found, FILE, transport)
        shutil.rmtree(path.parent)
        with pytest.raises(NotPublished, match="was removed while"):
            load_tensors(found, FILE, transport)


def test_a_file_of_which_nobody_can_tell_whether_it_is_there_keeps_its_error(
    tmp_path: Path, transport: DeviceTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Gone:
        device = transport.device

        def read_device(self, source: StoredFile, *_: object, **__: object) -> TransferReport:
            raise TransferFailed("read", source.path, errno=errno.ESTALE)

    store = store_at(tmp_path / "store")
    with store.open(publish_model(store)) as found:
        found.header(FILE)
        stale_at(monkeypatch, found.file(FILE).path)
        with pytest.raises(TransferFailed, match="ESTALE"):
            load_tensors(found, FILE, Gone())  # type: ignore[arg-type]


def test_small_files_and_places_outside_are_refused_or_read(tmp_path: Path) -> None:
    store = store_at(tmp_path / "store")
    with store.open(publish_model(store)) as found:
        size = found.manifest.file("config.json").size_bytes
        memory = torch.zeros(size, dtype=torch.uint8)
        with pytest.raises(Refused, match="has no device hashes"):
            read_to_device(found, "config.json", TRANSPORTS["gds"](), [Placement(0, memory)])
        read_to_device(found, "config.json", TRANSPORTS["staged"](), [Placement(0, memory)])
        assert bytes(memory.numpy()) == b'{"layers": 1}'
        with pytest.raises(Refused, match=r"is not in file config\.json of object"):
            read_to_device(found, "config.json", TRANSPORTS["staged"](), [Placement(1, memory)])
