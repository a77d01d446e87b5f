"""The cuFile probe: whatever its child does, there is a verdict in time and nothing is left running."""

import ctypes
import json
import os
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from ebbtide.storage.device import gds_probe
from ebbtide.storage.device.gds_probe import MARK, GdsVerdict, probe_gds
from ebbtide.storage.transport.transfer_report import Mode

GDS_LINE = MARK + json.dumps({"mode": "gds", "why": "it went"})


def child(tmp_path: Path, text: str) -> tuple[str, ...]:
    """A program in place of the probe."""
    script = tmp_path / "child.py"
    script.write_text(text)
    return (sys.executable, "-I", str(script))


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        (f"print({GDS_LINE!r})", GdsVerdict(True, Mode.GDS, "it went")),
        (f"print('noise'); print({GDS_LINE!r}); print('more')", GdsVerdict(True, Mode.GDS, "it went")),
        (f'print({MARK!r} + \'{{"mode": null, "why": "no"}}\')', GdsVerdict(False, None, "no")),
        (f'print({MARK!r} + \'{{"mode": "gds compat"}}\')', GdsVerdict(False, Mode.COMPAT, "")),
    ],
)
def test_what_the_child_says_is_the_verdict(tmp_path: Path, text: str, verdict: GdsVerdict) -> None:
    assert probe_gds(30.0, command=child(tmp_path, text)) == verdict


@pytest.mark.proves(
    "a probe that crashes means no",
    "a probe that fails or says nothing means no",
    "a probe that talks nonsense means no",
)
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "the probe ended with exit code 0 and no result"),
        ("import sys; sys.exit(3)", "the probe ended with exit code 3 and no result"),
        ("raise RuntimeError('boom')", "RuntimeError: boom"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "the probe was ended by SIGSEGV"),
        ("import os; os.write(1, bytes(range(256)) * 10)", "and no result; it printed last: "),
        (f"print({MARK!r} + 'no json')", "and no result"),
        (f"print({MARK!r} + '[1]')", "and no result"),
        (f'print({MARK!r} + \'{{"mode": "warp"}}\')', "the probe answered nonsense"),
        (f"print({MARK!r} + '{{\"mode\": [1]}}')", "the probe answered nonsense"),
        (f"print({GDS_LINE!r}, flush=True); import os; os.abort()", "the probe was ended by SIGABRT"),
        (f"print({GDS_LINE!r}, flush=True); import sys; sys.exit(1)", "the probe ended with exit code 1"),
    ],
)
def test_a_child_that_crashes_or_prints_garbage_means_no(tmp_path: Path, text: str, why: str) -> None:
    verdict = probe_gds(30.0, command=child(tmp_path, text))
    assert (verdict.works, verdict.mode) == (False, None)
    assert why in verdict.why
    assert verdict.why.isprintable()


def test_a_child_that_hangs_is_killed_at_the_deadline(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    text = f"""
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open({str(pids)!r}, "w").write(str(os.getpid()))
print({MARK!r} + '{{"stage": "open the cuFile driver"}}', flush=True)
time.sleep(600)
"""
    began = time.monotonic()
    verdict = probe_gds(1.5, command=child(tmp_path, text))
    assert time.monotonic() - began < 10
    assert not verdict.works and verdict.mode is None
    assert verdict.why.startswith(
        "the probe hung at 'open the cuFile driver' and had not ended after 1.5 s; it was killed"
    )
    assert not is_running(int(pids.read_text()))


def test_a_child_that_spins_and_prints_for_ever_is_killed_too(tmp_path: Path) -> None:
    verdict = probe_gds(1.0, command=child(tmp_path, "import os\nwhile True: os.write(1, b'x' * 4096)"))
    assert verdict.why.startswith("the probe hung at 'starting'")


@pytest.mark.proves("the probe's own children are killed with it")
def test_a_grandchild_that_holds_the_pipe_open_delays_nothing(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    text = f"""
import os, time
if os.fork() == 0:
    open({str(pids)!r}, "w").write(str(os.getpid()))
    time.sleep(600)
while not os.path.exists({str(pids)!r}):
    time.sleep(0.01)
print({GDS_LINE!r}, flush=True)
os._exit(0)
"""
    began = time.monotonic()
    assert probe_gds(60.0, command=child(tmp_path, text)) == GdsVerdict(True, Mode.GDS, "it went")
    assert time.monotonic() - began < 30
    for _ in range(100):
        if not is_running(int(pids.read_text())):
            return
        time.sleep(0.05)
    raise AssertionError("the grandchild still runs")


def test_a_program_that_is_not_there_means_no(tmp_path: Path) -> None:
    verdict = probe_gds(5.0, command=(str(tmp_path / "none"),))
    assert not verdict.works and "could not be started" in verdict.why


@pytest.mark.proves("the probe may not fall back to copies")
def test_the_child_may_not_fall_back_and_leaves_nothing_where_we_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "cufile.json"
    settings.write_text('{"properties": {"use_pci_p2pdma": true}} // ours')
    monkeypatch.setenv("CUFILE_ENV_PATH_JSON", str(settings))
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    text = f"""
import json, os, sys
open("cufile.log", "w").write("x")
config = json.load(open(os.environ["CUFILE_ENV_PATH_JSON"]))
why = [config["properties"], os.environ["KVIKIO_COMPAT_MODE"], os.getcwd() == config["logging"]["dir"], sys.argv[1:]]
print({MARK!r} + json.dumps({{"mode": None, "why": json.dumps([*why, os.getcwd()])}}))
"""
    verdict = probe_gds(30.0, directory=Path("there"), command=child(tmp_path, text))
    properties, compat, logs_there, arguments, scratch = json.loads(verdict.why)
    assert properties == {"use_pci_p2pdma": True, "allow_compat_mode": False}
    assert (compat, logs_there, arguments) == ("OFF", True, [str(here / "there")])
    assert not list(here.iterdir()) and not os.path.exists(scratch)


def test_the_real_probe_says_what_a_machine_without_a_gpu_lacks() -> None:
    try:
        ctypes.CDLL("libcuda.so.1")
        pytest.skip("this machine has a CUDA driver")
    except OSError:
        pass
    verdict = probe_gds(30.0)
    assert (verdict.works, verdict.mode) == (False, None)
    assert verdict.why.startswith("there is no CUDA driver library: libcuda.so.1")


class FakeCuda:
    """A CUDA driver whose device memory is a Python buffer; ``refused`` names a call that fails with error 2."""

    def __init__(self, refused: str = "") -> None:
        self.refused = refused
        self.memory: ctypes.Array[ctypes.c_char] | None = None

    def __getattr__(self, name: str) -> object:
        def call(*arguments: object) -> int:
            if name == self.refused:
                return 2
            if name == "cuMemAlloc_v2":
                self.memory = ctypes.create_string_buffer(arguments[1].value)  # type: ignore[attr-defined]
                arguments[0]._obj.value = ctypes.addressof(self.memory)  # type: ignore[attr-defined]
            if name == "cuMemcpyHtoD_v2":
                ctypes.memmove(arguments[0].value, arguments[1], arguments[2].value)  # type: ignore[attr-defined,arg-type]
            if name == "cuMemcpyDtoH_v2":
                ctypes.memmove(arguments[0], arguments[1].value, arguments[2].value)  # type: ignore[attr-defined,arg-type]
            return 0

        return call


class FakeFile:
    """kvikio's CuFile over that memory; ``fault`` is how it goes wrong."""

    fault = ""

    def __init__(self, path: str, flags: str) -> None:
        self.file = open(path, flags + "b")  # noqa: SIM115

    def __enter__(self) -> "FakeFile":
        return self

    def __exit__(self, *_error: object) -> None:
        self.file.close()

    def write(self, array: object) -> int:
        if self.fault == "refused":
            raise RuntimeError("cuFile error: GPUDirect Storage not supported\non current file")
        address, size = self._place(array)
        return self.file.write(ctypes.string_at(address, size))

    def read(self, array: object) -> int:
        address, _size = self._place(array)
        data = self.file.read()
        if self.fault == "short":
            data = data[:-4096]
        if self.fault == "wrong":
            data = b"?" + data[1:]
        if self.fault != "idle":
            ctypes.memmove(address, data, len(data))
        return len(data)

    @staticmethod
    def _place(array: object) -> tuple[int, int]:
        interface = array.__cuda_array_interface__  # type: ignore[attr-defined]
        assert interface["typestr"] == "|u1" and interface["version"] == 3
        return interface["data"][0], interface["shape"][0]


@pytest.fixture
def kvikio(monkeypatch: pytest.MonkeyPatch) -> type[FakeFile]:
    """A fake kvikio and a fake CUDA driver in this process, and a readable /run/udev."""
    package, driver = ModuleType("kvikio"), ModuleType("kvikio.cufile_driver")
    file = type("File", (FakeFile,), {})
    package.CuFile, package.cufile_driver = file, driver  # type: ignore[attr-defined]
    driver.driver_open = lambda: None  # type: ignore[attr-defined]
    driver.get = {"is_gds_available": True, "major_version": 2, "minor_version": 26}.__getitem__  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "kvikio", package)
    monkeypatch.setitem(sys.modules, "kvikio.cufile_driver", driver)
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: FakeCuda())
    monkeypatch.setattr(os, "access", lambda path, mode: path == "/run/udev")
    return file


def test_a_transfer_that_brings_the_bytes_back_proves_it(kvikio: type[FakeFile], tmp_path: Path) -> None:
    mode, why = gds_probe._probe(tmp_path)
    assert mode is Mode.GDS and why == f"1048576 bytes went from the GPU to {tmp_path} and back"
    assert not list(tmp_path.iterdir())


@pytest.mark.proves("the probe compares what came back")
@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("refused", "cuFile error: GPUDirect Storage not supported on current file"),
        ("short", "only 1048576 bytes were written and 1044480 read, of 1048576"),
        ("wrong", "other bytes came back than were written"),
        ("idle", "other bytes came back than were written"),
    ],
)
def test_a_transfer_that_fails_means_copies(kvikio: type[FakeFile], tmp_path: Path, fault: str, told: str) -> None:
    kvikio.fault = fault
    mode, why = gds_probe._probe(tmp_path)
    assert mode is Mode.COMPAT and told in why
    assert not list(tmp_path.iterdir())


def test_without_a_directory_only_the_driver_is_opened(kvikio: type[FakeFile], monkeypatch: pytest.MonkeyPatch) -> None:
    assert gds_probe._probe(None) == (Mode.GDS, "the cuFile driver opens with nvidia-fs 2.26; no transfer was tried")
    monkeypatch.setattr(sys.modules["kvikio.cufile_driver"], "get", lambda name: False)
    mode, why = gds_probe._probe(None)
    assert mode is Mode.COMPAT and "without nvidia-fs" in why


def test_without_udev_kvikio_would_not_use_cufile(kvikio: type[FakeFile], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert gds_probe._probe(None) == (None, "/run/udev cannot be read, and kvikio then does not use cuFile")


@pytest.mark.parametrize("call", ["cuInit", "cuMemAlloc_v2"])
def test_a_driver_that_refuses_is_named(
    kvikio: type[FakeFile], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, call: str
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: FakeCuda(call))
    _mode, why = gds_probe._probe(tmp_path)
    assert call.removesuffix("_v2") in why and "error 2" in why
