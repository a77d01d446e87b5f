"""The CUDA adapter without a GPU: against a stub of the driver's library, and without any."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ebbtide.snapshot.driver.cuda.cuda_library import CudaLibrary, NoCuda

HERE = Path(__file__).parent
ROOT = HERE.parents[3]


@pytest.mark.skipif(importlib.util.find_spec("cuda") is None, reason="cuda-bindings is not installed")
@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc to compile the stub of libcuda with")
def test_the_adapter_holds_against_a_stub_of_the_driver(tmp_path: Path) -> None:
    """In a process of its own: a library is found once, and the stub must be found first."""
    library = tmp_path / "libcuda.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, HERE / "stub_libcuda.c", "-ldl"], check=True, timeout=60)
    plain = [
        "-c",
        os.devnull,
        "--rootdir",
        str(ROOT),
        "--noconftest",
        "--import-mode=importlib",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plain, "--rootdir", str(ROOT), str(HERE / "stubbed_cuda.py")],
        cwd=ROOT,
        # The plugins take longer to load than all of its tests take to run.
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_without_bindings_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda", None)
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(NoCuda, match=r"pip install 'ebbtide\[gpu\]'"):
        CudaLibrary()


@pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="this machine has a driver")
def test_without_a_driver_it_says_so() -> None:
    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
    with pytest.raises(NoCuda, match="no CUDA driver on this machine"):
        CudaLibrary()


def test_it_is_imported_without_cuda_torch_or_ray() -> None:
    """The helper starts in no time, also where there is no GPU."""
    code = (
        "import sys, ebbtide.snapshot.driver.driver_choice, ebbtide.snapshot.driver.gang;"
        "import ebbtide_testing.gpu_driver.fake_driver;"
        "print([name for name in ('cuda', 'torch', 'ray', 'numpy', 'pydantic') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
