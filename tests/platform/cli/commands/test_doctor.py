"""`ebbtide doctor`: for people, for programs, and what it leaves behind."""

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from subprocess import run
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from ebbtide.cli.commands import doctor as module
from ebbtide.cli.main import cli
from ebbtide.client.cluster_record import NoPool
from ebbtide.diagnostics.host.filesystem_probe import FilesystemReading
from ebbtide.diagnostics.host.machine_reader import Machine
from ebbtide.storage.posix.posix_transport import PosixTransport
from tests.platform.diagnostics import machines


def doctor(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["doctor", *arguments])


@pytest.fixture(autouse=True)
def no_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_cluster(_name: str | None) -> None:
        raise NoPool("no pool was brought up on this machine")

    monkeypatch.setattr(module, "load_cluster", load_cluster)


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Callable[[Path], Machine]], Machine]:
    """Lets the command look at another machine."""

    def use(build: Callable[[Path], Machine]) -> Machine:
        root = tmp_path / "root"
        root.mkdir()
        made = build(root)
        monkeypatch.setattr(module, "Machine", lambda: made)
        return made

    return use


Use = Callable[[Callable[[Path], Machine]], Machine]


def test_this_machine_can_be_looked_at(tmp_path: Path) -> None:
    result = doctor(str(tmp_path), "--no-probe", "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert answer["can_serve"] is True and answer["directory"] == os.path.realpath(tmp_path)
    assert answer["load_path"] in ("posix direct", "posix buffered", "gds")
    ids = [finding["id"] for finding in answer["findings"]]
    assert {"gpu.devices", "memory.room", "fs.use", "fs.direct"} <= set(ids)
    assert not [identity for identity in ids if identity.startswith("bandwidth")]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("build", "titles"),
    [
        (machines.bare_cpu, ["Missing or broken", "Limited", "In order"]),
        (machines.proprietary_module, ["Missing or broken", "Limited", "Not known", "In order"]),
    ],
)
def test_people_get_groups_worst_first_and_one_sentence(
    node: Use, tmp_path: Path, build: Callable[[Path], Machine], titles: list[str]
) -> None:
    node(build)
    result = doctor(str(tmp_path), "--no-probe")
    assert result.exit_code == 0 and result.stderr == ""
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    assert [line for line in lines if line and not line.startswith(" ")][1:-1] == titles
    assert lines[-1].startswith(f"Files in {tmp_path} go ")


def test_what_is_not_in_order_comes_with_what_to_do(node: Use, tmp_path: Path) -> None:
    node(machines.vfio_bound_nic)
    lines = [line.rstrip() for line in doctor(str(tmp_path), "--no-probe").stdout.splitlines()]
    (line,) = (line for line in lines if "iommu.vfio" in line)
    assert "bound to vfio-pci: 0000:18:00.0 (network card)" in line
    assert "-> give it back to its driver" in line, "in a pipe a finding is one line"


def test_a_node_that_cannot_serve_is_exit_code_1(node: Use, tmp_path: Path) -> None:
    def broken(root: Path) -> Machine:
        reading = FilesystemReading(error="Read-only file system (EROFS)")
        return replace(machines.bare_cpu(root), probe_filesystem=lambda _directory: reading)

    node(broken)
    result = doctor(str(tmp_path), "--json")
    assert result.exit_code == 1
    answer = json.loads(result.stdout)
    assert (answer["can_serve"], answer["load_path"]) == (False, None)
    assert [finding["id"] for finding in answer["findings"] if finding["broken"]] == ["fs.use"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["{tmp}/none"], "there is no directory {tmp}/none"),
        (["{tmp}/file"], "{tmp}/file is no directory"),
        (["{tmp}", "--shared-dir", "{tmp}/file"], "name one directory, not both"),
        (["{tmp}", "--probe-bytes", "lots"], "'lots' is no size in bytes"),
        (["{tmp}", "--probe-bytes", "-1GiB"], "no size in bytes"),
        (["{tmp}", "--probe-bytes", "4096"], "a file of less than 1 MiB tells nothing"),
        (["{tmp}", "--expect-gbps", "0"], "0.0 is not in the range"),
        (["{tmp}", "--pool-bytes", "x"], "no size in bytes"),
    ],
)
def test_bad_input_is_exit_code_2(tmp_path: Path, arguments: list[str], told: str) -> None:
    (tmp_path / "file").touch()
    result = doctor(*(argument.format(tmp=tmp_path) for argument in arguments))
    assert (result.exit_code, result.stdout) == (2, "")
    assert told.format(tmp=tmp_path) in result.stderr


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("1MiB", 1 << 20), ("1.5 GB", 1_500_000_000), ("2G", 2 * 10**9), ("1gib", 1 << 30), ("7B", 7)],
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert module.ByteSize().convert(text, None, None) == size


def test_speed_is_measured_and_the_file_goes(tmp_path: Path) -> None:
    result = doctor(str(tmp_path), "--probe-bytes", "1MiB", "--expect-gbps", "0.000001", "--json")
    assert result.exit_code == 0, result.output
    found = {finding["id"]: finding for finding in json.loads(result.stdout)["findings"]}
    assert found["bandwidth.read"]["verdict"] == "ok" and found["bandwidth.read"]["values"]["bytes"] == 16 << 20
    assert "GB/s written durably" in found["bandwidth.write"]["what"]
    assert list(tmp_path.iterdir()) == []


def test_a_machine_without_memory_for_buffers_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def process_pool() -> None:
        raise MemoryError("no memory for an arena of 134217728 bytes")

    monkeypatch.setattr(module, "process_pool", process_pool)
    result = doctor(str(tmp_path))
    assert result.exit_code == 1 and "This node cannot serve: no memory for an arena" in result.stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_mid_measurement_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    seen: list[str] = []

    def read(_self: PosixTransport, path: Path, *_arguments: object, **_options: object) -> None:
        seen.extend(entry.name for entry in tmp_path.iterdir())
        os.kill(os.getpid(), number)
        signal.sigtimedwait([], 5)  # the handler runs here
        raise AssertionError("the signal was ignored")

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(PosixTransport, "read", read)
    result = doctor(str(tmp_path), "--probe-bytes", "1MiB")
    assert result.exit_code == 1 and "Aborted!" in result.stderr
    assert len(seen) == 1 and seen[0].endswith(".bandwidth")
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) == before


def test_the_pool_s_directory_is_looked_at_if_none_is_named(
    node: Use, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node(machines.bare_cpu)
    monkeypatch.setattr(module, "load_cluster", lambda _name: SimpleNamespace(shared_dir=str(tmp_path)))
    assert json.loads(doctor("--no-probe", "--json").stdout)["directory"] == str(tmp_path)


def test_without_a_pool_the_node_alone_is_looked_at(node: Use) -> None:
    node(machines.bare_cpu)
    result = doctor()
    assert result.exit_code == 0 and "No directory was named" in result.stdout


def test_this_node_s_addresses_are_written_into_a_file_of_its_own(node: Use, tmp_path: Path) -> None:
    node(machines.nfs_with_stale_addresses)
    path = tmp_path / "node.json"
    path.write_text('{\n  // ours\n  "properties": {"use_pci_p2pdma": true}, "fs": {"nfs": {"x": 1}}\n}')
    result = doctor("--write-cufile-json", str(path))
    assert (result.exit_code, result.stdout) == (0, f"{path}: 10.0.9.7, 10.0.10.7\n")
    assert f"CUFILE_ENV_PATH_JSON={path} is set" in result.stderr
    assert json.loads(path.read_text()) == {
        "properties": {"use_pci_p2pdma": True, "rdma_dev_addr_list": ["10.0.9.7", "10.0.10.7"]},
        "fs": {"nfs": {"x": 1}},
    }
    result = doctor("--write-cufile-json", str(path), "--json")
    assert json.loads(result.stdout) == {"path": str(path), "addresses": ["10.0.9.7", "10.0.10.7"]}


def test_a_file_of_something_else_is_bad_input_and_stays(node: Use, tmp_path: Path) -> None:
    node(machines.h200_with_nvidia_fs)
    path = tmp_path / "notes.txt"
    path.write_text("my notes")
    result = doctor("--write-cufile-json", str(path))
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"nothing was written: {path}:1:1: this is no JSON" in result.stderr
    assert path.read_text() == "my notes"


def test_a_node_without_addresses_writes_nothing(node: Use, tmp_path: Path) -> None:
    node(machines.bare_cpu)
    result = doctor("--write-cufile-json", str(tmp_path / "node.json"))
    assert result.exit_code == 1 and "nothing was written: no RDMA port with a link" in result.stderr
    assert not (tmp_path / "node.json").exists()


def test_a_place_that_cannot_be_written_is_told(node: Use, tmp_path: Path) -> None:
    node(machines.h200_with_nvidia_fs)
    path = tmp_path / "none" / "node.json"
    result = doctor("--write-cufile-json", str(path))
    assert result.exit_code == 1 and f"{path} cannot be written: No such file or directory" in result.stderr


def test_it_needs_neither_ray_nor_torch() -> None:
    code = (
        "import sys; sys.argv = ['ebbtide', 'doctor', '/none']\n"
        "from ebbtide.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as end: print(end.code, {'ray', 'torch', 'vllm', 'kvikio'} & set(sys.modules))\n"
    )
    done = run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "2 set()\n" and done.stderr == "Error: there is no directory /none\n"
