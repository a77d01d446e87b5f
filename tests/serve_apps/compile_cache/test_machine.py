"""Which machine compiled code is for."""

from pathlib import Path

from ebbtide.diagnostics.host.machine_reader import Machine, Uname
from ebbtide.diagnostics.host.nvml_reading import NvmlReading
from ebbtide_serve.compile_cache.machine import machine_facts


def machine(root: Path, files: dict[str, str]) -> Machine:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Machine(root=root, uname=lambda: Uname("6.8", "x86_64"), nvml=NvmlReading)


def test_a_gpu_is_named_with_its_driver(tmp_path: Path) -> None:
    gpus = {f"proc/driver/nvidia/gpus/0000:0{n}:00.0/information": "Model: \t NVIDIA H200\n" for n in (1, 2)}
    version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n"
    files = gpus | {"proc/driver/nvidia/version": version}
    found = machine_facts(machine(tmp_path / "a", files | {"proc/cpuinfo": "flags : avx2\n"}))
    assert (found["gpu"], found["driver"]) == ("NVIDIA H200", "580.95.05")
    other = machine_facts(machine(tmp_path / "b", files | {"proc/cpuinfo": "flags : avx512f\n"}))
    assert found["libc"]
    assert found["cpu"] != other["cpu"], "parts of what is compiled for a GPU run on the CPU"


def test_without_a_gpu_the_cpus_instructions_count_in_whatever_order(tmp_path: Path) -> None:
    one = machine_facts(machine(tmp_path / "a", {"proc/cpuinfo": "model\t: x\nflags\t\t: avx2 amx\n"}))
    same = machine_facts(machine(tmp_path / "b", {"proc/cpuinfo": "model\t: y\nflags\t\t: amx avx2\nflags : z\n"}))
    other = machine_facts(machine(tmp_path / "c", {"proc/cpuinfo": "flags\t\t: avx2\n"}))
    arm = machine_facts(machine(tmp_path / "d", {"proc/cpuinfo": "Features\t: sve\n"}))
    none = machine_facts(machine(tmp_path / "e", {"proc/meminfo": ""}))
    assert one == same
    assert len({facts["cpu"] for facts in (one, other, arm, none)}) == 4
    assert none["cpu"] == "x86_64 unknown"
