"""One rank's parameters in a file, and back into memory.

The file is plain safetensors: one tensor for each piece of parameter memory, and for buffers that ``load_weights``
fills. Names, types and shapes are compared with the model's before a byte is copied; each chunk is checked before any
of it is copied. What is copied before a read fails is therefore right, and loading in another way may follow. It may
have filled buffers by then, which that other way finds filled.
"""

import json
from collections.abc import Mapping

import torch
from torch import nn

from ebbtide.storage.device.placements import Placements
from ebbtide.storage.objects.stored_object import StoredObject
from ebbtide.storage.safetensors.file_header import Header
from ebbtide.storage.safetensors.file_layout import ContainerPlan, TensorSpec, plan_container, specs_of
from ebbtide.storage.transport.transfer_report import TransferReport
from ebbtide_serve.loading.errors import FlatUnusable
from ebbtide_serve.loading.flat.layout import Layout, buffers_of, spec_of
from ebbtide_serve.loading.reading.process_store import ProcessStore
from ebbtide_serve.loading.reading.transfers import NOTHING, by_device, bytes_of, read_all

_LAYOUT, _BUFFERS = "ebbtide.layout", "ebbtide.buffers"
_BUFFER_PREFIX = "buffer:"  # a buffer's name in the file; no parameter's name has a colon


def plan_flat(layout: Layout, buffers: Mapping[str, torch.Tensor]) -> ContainerPlan:
    """Lay out a rank's file.

    Args:
        layout: of its parameters.
        buffers: those that loading fills.

    Raises:
        FlatUnusable: a parameter's name cannot stand in a file.
    """
    specs = [one.spec for one in layout.held]
    if odd := [spec.name for spec in specs if spec.name.startswith(_BUFFER_PREFIX)]:
        raise FlatUnusable(f"a parameter is called {odd[0]!r}")
    specs += [spec_of(_BUFFER_PREFIX + name, data) for name, data in buffers.items()]
    return plan_container(specs, {_LAYOUT: layout.digest, _BUFFERS: json.dumps(sorted(buffers))})


def flat_memory(layout: Layout, buffers: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The memory behind each tensor of such a file, as flat bytes."""
    return dict(layout.memory()) | {_BUFFER_PREFIX + name: bytes_of(data) for name, data in buffers.items()}


def layout_in(header: Header) -> str:
    """The digest of the layout that a file is of; empty if it does not say."""
    return header.metadata.get(_LAYOUT, "")


def buffers_in(header: Header) -> tuple[str, ...]:
    """The buffers that a file holds.

    Raises:
        FlatUnusable: it does not say.
    """
    try:
        return tuple(str(name) for name in json.loads(header.metadata[_BUFFERS]))
    except (KeyError, ValueError, TypeError) as error:
        raise FlatUnusable(f"the flat form does not say what it holds ({error!r})") from error


def read_flat(
    stored: StoredObject, name: str, model: nn.Module, layout: Layout, *, reach: ProcessStore
) -> TransferReport:
    """Fill a model's parameters from a file.

    Raises:
        FlatUnusable: the file is of another layout; nothing was changed.
        Corrupt, NotPublished, TransferFailed: it cannot be read (to its end); see the module.
    """
    report = NOTHING
    for device, placements in by_device(_places(stored.header(name), model, layout)).items():
        wanted, transport = Placements(placements, device), reach.to_device(device)
        report = report + read_all(stored, name, wanted, transport=transport)
    return report


def _places(header: Header, model: nn.Module, layout: Layout) -> list[tuple[int, torch.Tensor]]:
    """Where each tensor of a file goes; raises FlatUnusable unless file and model agree in everything."""
    buffers = buffers_of(model, buffers_in(header))
    memory = flat_memory(layout, buffers)
    wanted = {spec.name: spec for spec in plan_specs(layout, buffers)}
    found = {one.name: one for one in specs_of(header.entries)}
    if other := sorted(wanted.keys() ^ found.keys()):
        where = "only in the model" if other[0] in wanted else "only in the flat form"
        raise FlatUnusable(f"{len(other)} parameters differ, such as {other[0]}, which is {where}")
    for name, spec in wanted.items():
        if found[name] != spec:
            raise FlatUnusable(f"{name} is {_shown(found[name])} in the flat form, and {_shown(spec)} in the model")
    if layout_in(header) != layout.digest:
        raise FlatUnusable("the parameters lie otherwise in memory than in the flat form (order or sharing)")
    return [(entry.offset, memory[entry.name]) for entry in header.entries]


def plan_specs(layout: Layout, buffers: Mapping[str, torch.Tensor]) -> list[TensorSpec]:
    """The tensors of a rank's file."""
    return specs_of(plan_flat(layout, buffers).entries)


def _shown(spec: TensorSpec) -> str:
    return f"{spec.dtype} {list(spec.shape)}"
