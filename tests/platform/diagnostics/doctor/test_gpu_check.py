"""GPUs and their driver."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.diagnostics.doctor.findings import Verdict
from ebbtide.diagnostics.doctor.gpu_check import Flavour, GpuReading, judge_gpu, parse_version, read_gpu
from ebbtide.diagnostics.host.nvml_reading import NvmlReading
from tests.examples import examples
from tests.platform.diagnostics.machines import GPU, OPEN, PROPRIETARY, Tree, machine


@pytest.mark.parametrize(
    ("text", "version", "flavour"),
    [
        (OPEN.format(version="580.126.09"), "580.126.09", Flavour.OPEN),
        (PROPRIETARY.format(version="550.127.05"), "550.127.05", Flavour.PROPRIETARY),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  TempVersion  Release Build\n", None, Flavour.OPEN),
        ("GCC version:  gcc version 13.3.0\n", None, None),
        ("", None, None),
    ],
)
def test_version_and_kind_of_module(text: str, version: str | None, flavour: Flavour | None) -> None:
    assert parse_version(text) == (version, flavour)


@settings(deadline=None, max_examples=examples(60))
@given(st.text(max_size=100))
def test_no_text_breaks_the_parser(text: str) -> None:
    parse_version(text)
    parse_version(f"NVRM version: {text}")


def test_what_the_driver_shows_is_read(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.gpu(version="580.95.05", registry="RMForceStaticBar1=1;")
    tree.pci("0000:00:02.0", "0x8086", "0x030000")  # somebody else's display
    tree.pci("0000:17:00.1", "0x10de", "0x040300")  # the sound of a GPU
    reading = read_gpu(machine(tree))
    assert reading.models == ("NVIDIA H200",) and reading.on_pci == reading.addresses == (GPU,)
    assert (reading.version, reading.major, reading.flavour) == ("580.95.05", 580, Flavour.OPEN)
    assert reading.registry == "RMForceStaticBar1=1;"


def test_gpus_that_only_nvml_shows_count(tmp_path: Path) -> None:
    nvml = NvmlReading(("NVIDIA H200", "NVIDIA H200"), "580.95.05", (1 << 38, 1 << 38))
    reading = read_gpu(machine(Tree(tmp_path), nvml=nvml))
    devices, driver, answers = judge_gpu(reading)
    assert devices.what == "2 x NVIDIA H200" and devices.verdict is Verdict.OK
    assert driver.verdict is Verdict.UNKNOWN and driver.what.startswith("driver 580.95.05; /proc/driver/nvidia/version")
    assert answers.what == "NVML answers; BAR1: 262144 MiB"


def test_a_gpu_without_a_driver_is_told_apart_from_no_gpu() -> None:
    (finding,) = judge_gpu(GpuReading(on_pci=(GPU,)))
    assert finding.verdict is Verdict.MISSING and GPU in finding.what and "install the NVIDIA driver" in finding.remedy
    (finding,) = judge_gpu(GpuReading())
    assert (finding.what, finding.broken) == ("no NVIDIA GPU", False)


def test_the_open_module_is_told_to_those_who_run_the_other() -> None:
    reading = GpuReading(models=("NVIDIA A100",), version="550.1", flavour=Flavour.PROPRIETARY)
    finding = judge_gpu(reading)[1]
    assert finding.verdict is Verdict.LIMITED and "nvidia-open" in finding.remedy
    assert finding.values == {"version": "550.1", "flavour": "proprietary"}
