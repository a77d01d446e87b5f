"""All subjects of one node in one report: readings first, then findings, then the sentence."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ebbtide.diagnostics.doctor.bandwidth_check import BandwidthReading, judge_bandwidth, too_large
from ebbtide.diagnostics.doctor.filesystem_check import judge_filesystem
from ebbtide.diagnostics.doctor.findings import Finding, Verdict
from ebbtide.diagnostics.doctor.gds_check import judge_gds, read_gds
from ebbtide.diagnostics.doctor.gpu_check import judge_gpu, read_gpu
from ebbtide.diagnostics.doctor.iommu_check import judge_iommu, read_iommu
from ebbtide.diagnostics.doctor.load_path import LoadPath, choose_load_path
from ebbtide.diagnostics.doctor.memory_check import judge_memory, read_memory
from ebbtide.diagnostics.doctor.p2pdma_check import judge_p2pdma, read_p2pdma
from ebbtide.diagnostics.doctor.rdma_check import judge_rdma, read_rdma, read_settings
from ebbtide.diagnostics.host.deadline import NoAnswer, within
from ebbtide.diagnostics.host.filesystem_probe import DEADLINE_S, FilesystemReading
from ebbtide.diagnostics.host.machine_reader import Machine
from ebbtide.diagnostics.host.mount import read_mount
from ebbtide.storage.memory.buffer_pool import DEFAULT_COUNT
from ebbtide.storage.transport.transport import CHUNK_BYTES

POOL_BYTES = DEFAULT_COUNT * CHUNK_BYTES
GDS_PROBE_S = 20.0  # importing kvikio from cold caches and opening the driver take about 3 s

# Measures a directory with a file of that many bytes.
Measure = Callable[[Path, int], BandwidthReading]


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """What is to be looked at.

    Attributes:
        directory: the shared directory, absolute; None looks at the node alone.
        probe_bytes: of the bandwidth probe; 0 leaves it out.
        expect_gbps: reading speed to hold it against, in 10^9 bytes per second.
        pool_bytes: of host memory that the transfers' buffers shall have.
        gds_probe_s: deadline of the cuFile probe.
    """

    directory: Path | None = None
    probe_bytes: int = 0
    expect_gbps: float | None = None
    pool_bytes: int = POOL_BYTES
    gds_probe_s: float = GDS_PROBE_S


@dataclass(frozen=True, slots=True)
class Report:
    """What was found.

    Attributes:
        directory: that was looked at.
        findings: in the order of the subjects.
        path: how files will be loaded.
    """

    directory: Path | None
    findings: tuple[Finding, ...]
    path: LoadPath

    @property
    def can_serve(self) -> bool:
        """Whether nothing that is needed is broken."""
        return not any(finding.broken for finding in self.findings)

    def as_json(self) -> dict[str, object]:
        """For programs."""
        return {
            "directory": None if self.directory is None else str(self.directory),
            "can_serve": self.can_serve,
            "load_path": self.path.mode.value if self.path.mode else None,
            "summary": self.path.sentence,
            "findings": [finding.as_json() for finding in self.findings],
        }


def examine(machine: Machine, wishes: DoctorOptions, *, measure: Measure) -> Report:
    """Look at everything; ``measure`` runs last, and only where the directory works and has the room."""
    config, _path, _error = read_settings(machine)
    directory = None if wishes.directory is None else _followed(wishes.directory)
    filesystem = None if directory is None else machine.probe_filesystem(directory)
    # After that: an automounter has mounted it by now.
    mount = read_mount(machine, None if directory is None else PurePosixPath(directory))
    gpu = read_gpu(machine)
    usable = directory if filesystem is not None and not filesystem.error else None
    gds = read_gds(machine, config, directory=usable, probe_s=wishes.gds_probe_s if gpu.present else 0.0)
    findings = [
        *judge_gpu(gpu),
        *judge_gds(gds, gpu, mount),
        *judge_p2pdma(read_p2pdma(machine, config), gpu, mount),
        *judge_iommu(read_iommu(machine), gpu),
        *judge_rdma(read_rdma(machine), mount),
        *judge_memory(read_memory(machine), wishes.pool_bytes),
    ]
    if directory is None or filesystem is None:
        findings.append(_no_directory())
    else:
        findings += judge_filesystem(directory, mount, filesystem)
        if wishes.probe_bytes and not any(finding.broken for finding in findings):
            findings += _bandwidth(directory, filesystem, wishes, measure)
    path = choose_load_path(directory, gpu, gds, filesystem, findings)
    return Report(directory, tuple(findings), path)


def _followed(directory: Path) -> Path:
    """``directory`` without links, so that its mount can be told; as it is where that hangs."""
    try:
        return Path(within(DEADLINE_S, lambda: os.path.realpath(directory)))
    except NoAnswer:
        return directory


def _no_directory() -> Finding:
    why = "whether models can be loaded and kept depends on it most of all"
    return Finding("fs.type", Verdict.UNKNOWN, "no directory was named", why, "name the pool's: ebbtide doctor DIR")


def _bandwidth(
    directory: Path, filesystem: FilesystemReading, wishes: DoctorOptions, measure: Measure
) -> list[Finding]:
    if reason := too_large(wishes.probe_bytes, filesystem.free_bytes):
        why, remedy = "the speed of the directory is not known", "make room, or give a smaller --probe-bytes"
        return [Finding("bandwidth.probe", Verdict.UNKNOWN, reason, why, remedy)]
    return judge_bandwidth(measure(directory, wishes.probe_bytes), wishes.expect_gbps)
