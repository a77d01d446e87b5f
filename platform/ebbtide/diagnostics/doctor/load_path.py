"""The way that bytes will take on this node, and what would make it faster: the sentence a person came for."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ebbtide.diagnostics.doctor.findings import Finding, Verdict
from ebbtide.diagnostics.doctor.gds_check import GdsReading
from ebbtide.diagnostics.doctor.gpu_check import GpuReading
from ebbtide.diagnostics.host.filesystem_probe import FilesystemReading
from ebbtide.storage.transport.transfer_report import Mode

# What holds a load back, the greatest gain first; all before the last group only where there is a GPU.
_TO_GPU = ("gpu.driver", "gds.nvidia_fs", "gds.kvikio", "gds.libcufile", "gds.udev", "gds.forced", "rdma.addresses")
_BETWEEN_DEVICES = ("iommu.state", "iommu.acs", "iommu.vfio", "rdma.addresses", "rdma.cards")
_HOST = ("fs.direct", "memory.huge_pages", "fs.nfs_connections", "fs.nfs_requests", "bandwidth.read")
_SHOWN = 2


@dataclass(frozen=True, slots=True)
class LoadPath:
    """How files get into memory here.

    Attributes:
        mode: the transfers' mode; None if nothing can be loaded, or no directory was named.
        sentence: that, why not better, and what would make it faster.
    """

    mode: Mode | None
    sentence: str


def choose_load_path(
    directory: Path | None,
    gpu: GpuReading,
    gds: GdsReading,
    filesystem: FilesystemReading | None,
    findings: Sequence[Finding],
) -> LoadPath:
    """The path for files in ``directory``, given all findings."""
    broken = next((finding for finding in findings if finding.broken), None)
    if broken is not None:
        return LoadPath(None, f"This node cannot serve: {broken.what}. To do: {broken.remedy}.")
    if directory is None or filesystem is None:
        return LoadPath(None, "No directory was named, so only the node itself was looked at: ebbtide doctor DIR.")
    if gds.probe is not None and gds.probe.works:
        faster = _faster(findings, _BETWEEN_DEVICES) or _NOTHING
        return LoadPath(Mode.GDS, f"Files in {directory} go straight to the GPU (cuFile, DMA). {faster}")
    after = ", then to the GPU" if gpu.present else ""
    if filesystem.direct_error:
        mode, way = Mode.BUFFERED, f"through the page cache to host memory{after}"
    else:
        mode, way = Mode.DIRECT, f"past the page cache to host memory (O_DIRECT){after}"
    faster = _faster(findings, (*_TO_GPU, *_BETWEEN_DEVICES, *_HOST) if gpu.present else _HOST)
    if not faster and gpu.present and gds.probe is not None:
        faster = f"The direct way failed, and nothing else tells why: {gds.probe.why}."
    return LoadPath(mode, f"Files in {directory} go {way}. {faster or _NOTHING}")


_NOTHING = "Nothing that was looked at holds it back."


def _faster(findings: Sequence[Finding], order: Sequence[str]) -> str:
    held = {finding.id: finding for finding in findings if finding.verdict in (Verdict.LIMITED, Verdict.MISSING)}
    steps = [f"{_first_step(held[key].remedy)} ({key})" for key in dict.fromkeys(order) if key in held][:_SHOWN]
    return f"Faster would be: {'; '.join(steps)}." if steps else ""


def _first_step(remedy: str) -> str:
    return remedy.partition("; ")[0]
