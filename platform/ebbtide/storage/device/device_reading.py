"""Files of published objects into device memory, checked on their way."""

from collections.abc import Iterable

import torch

from ebbtide.storage.device.device_transport import DeviceTransport
from ebbtide.storage.device.placements import Placement
from ebbtide.storage.errors import NotPublished, TransferFailed
from ebbtide.storage.objects.staging import deadline_for
from ebbtide.storage.objects.stored_file import was_removed
from ebbtide.storage.objects.stored_object import StoredObject
from ebbtide.storage.safetensors.torch_views import torch_views
from ebbtide.storage.transport.transfer_report import TransferReport


def read_to_device(
    found: StoredObject,
    name: str,
    transport: DeviceTransport,
    placements: Iterable[Placement],
    *,
    verify: bool = True,
    deadline_s: float | None = None,
) -> TransferReport:
    """Read what is wanted of a file of an open object to where it is wanted; see `DeviceTransport.read_device`.

    Args:
        found: the object.
        name: of the file.
        transport: to the device.
        placements: for instance one `place` for each tensor of its header, or one for the whole file.
        verify: turn it off only if the bytes are checked in another way.
        deadline_s: for all of it, in seconds; by default generous.

    Raises:
        Corrupt: bytes are not those that were published.
        NotPublished: the object was removed meanwhile.
        TransferFailed: they cannot be read, or the device refuses them.
    """
    file, wanted = found.file(name), list(placements)
    patience_s = deadline_for(sum(each.part.length for each in wanted)) if deadline_s is None else deadline_s
    try:
        return transport.read_device(file, wanted, verify=verify, deadline_s=patience_s)
    except TransferFailed as error:
        if was_removed(error, file.path):
            raise NotPublished(f"object {found.id} was removed while {file.path} was being read") from error
        raise


def load_tensors(
    found: StoredObject, name: str, transport: DeviceTransport, *, verify: bool = True, deadline_s: float | None = None
) -> tuple[dict[str, torch.Tensor], TransferReport]:
    """All tensors of a safetensors file, as views of one new stretch of device memory; raises as `read_to_device`."""
    header = found.header(name)
    memory = torch.empty(header.file_bytes, dtype=torch.uint8, device=transport.device)
    whole = [Placement(0, memory)]
    report = read_to_device(found, name, transport, whole, verify=verify, deadline_s=deadline_s)
    return torch_views(header, memory), report
