"""The sentence at the end."""

from pathlib import Path

import pytest

from ebbtide.diagnostics.doctor.findings import Finding, Verdict
from ebbtide.diagnostics.doctor.gds_check import GdsReading
from ebbtide.diagnostics.doctor.gpu_check import GpuReading
from ebbtide.diagnostics.doctor.load_path import choose_load_path
from ebbtide.diagnostics.host.filesystem_probe import FilesystemReading
from ebbtide.storage.device.gds_probe import GdsVerdict
from ebbtide.storage.transport.transfer_report import Mode

HERE = Path("/shared/pool")
NO_GPU, H200 = GpuReading(), GpuReading(models=("NVIDIA H200",))
WORKS = GdsReading(probe=GdsVerdict(True, Mode.GDS, "it went"))
DIRECT, BUFFERED = FilesystemReading(alignment=512), FilesystemReading(direct_error="open: EINVAL")


def limited(identity: str, remedy: str) -> Finding:
    return Finding(identity, Verdict.LIMITED, "so", "why", remedy)


@pytest.mark.parametrize(
    ("gpu", "gds", "filesystem", "mode", "words"),
    [
        (H200, WORKS, DIRECT, Mode.GDS, "straight to the GPU"),
        (H200, GdsReading(), DIRECT, Mode.DIRECT, "past the page cache to host memory (O_DIRECT), then to the GPU."),
        (NO_GPU, GdsReading(), DIRECT, Mode.DIRECT, "past the page cache to host memory (O_DIRECT)."),
        (H200, GdsReading(), BUFFERED, Mode.BUFFERED, "through the page cache to host memory, then to the GPU."),
        (NO_GPU, GdsReading(), BUFFERED, Mode.BUFFERED, "through the page cache to host memory."),
    ],
)
def test_each_way_has_its_words(
    gpu: GpuReading, gds: GdsReading, filesystem: FilesystemReading, mode: Mode, words: str
) -> None:
    path = choose_load_path(HERE, gpu, gds, filesystem, [])
    assert path.mode is mode and words in path.sentence
    assert path.sentence.endswith("Nothing that was looked at holds it back.")


def test_the_two_greatest_gains_are_named() -> None:
    findings = [limited("memory.huge_pages", "pages"), limited("fs.direct", "direct"), limited("gpu.driver", "driver")]
    path = choose_load_path(HERE, H200, GdsReading(), DIRECT, findings)
    assert path.sentence.endswith("Faster would be: driver (gpu.driver); direct (fs.direct).")


def test_what_concerns_gpus_is_not_advised_without_one() -> None:
    findings = [limited("gds.nvidia_fs", "nvidia-fs"), limited("memory.huge_pages", "pages")]
    path = choose_load_path(HERE, NO_GPU, GdsReading(), DIRECT, findings)
    assert path.sentence.endswith("Faster would be: pages (memory.huge_pages).")


def test_only_the_first_step_of_a_remedy_is_told() -> None:
    findings = [limited("fs.direct", "do this, then that; and never forget the other")]
    path = choose_load_path(HERE, NO_GPU, GdsReading(), DIRECT, findings)
    assert path.sentence.endswith("Faster would be: do this, then that (fs.direct).")


def test_a_probe_that_failed_for_no_known_reason_is_not_called_nothing() -> None:
    gds = GdsReading(probe=GdsVerdict(False, Mode.COMPAT, "cuFile error 5018"))
    path = choose_load_path(HERE, H200, gds, DIRECT, [])
    assert path.sentence.endswith("The direct way failed, and nothing else tells why: cuFile error 5018.")
    assert "failed" not in choose_load_path(HERE, NO_GPU, gds, DIRECT, []).sentence


def test_what_is_unknown_is_no_advice() -> None:
    findings = [Finding("fs.direct", Verdict.UNKNOWN, "so", "why", "look")]
    assert "Nothing" in choose_load_path(HERE, H200, GdsReading(), DIRECT, findings).sentence


def test_what_is_broken_comes_before_everything() -> None:
    broken = Finding("fs.use", Verdict.MISSING, "it is read-only", "why", "remount it", broken=True)
    path = choose_load_path(HERE, H200, WORKS, DIRECT, [limited("fs.direct", "x"), broken])
    assert path.mode is None and path.sentence == "This node cannot serve: it is read-only. To do: remount it."
