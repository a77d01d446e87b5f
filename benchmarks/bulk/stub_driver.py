"""A libcuda that has no device, so that kvikio's host path can run where there is no GPU.

kvikio asks the CUDA driver whether a pointer is of the host before it reads to it; without any libcuda.so.1 it fails,
or spins for ever. This one answers "not initialized" to everything.
"""

import shutil
import subprocess
from pathlib import Path

_SYMBOLS = """
cuCtxCreate cuCtxCreate_v2 cuCtxCreate_v3 cuCtxCreate_v4 cuCtxDestroy_v2 cuCtxGetCurrent cuCtxGetDevice
cuCtxPopCurrent_v2 cuCtxPushCurrent_v2 cuDeviceGet cuDeviceGetAttribute cuDeviceGetCount cuDevicePrimaryCtxRelease_v2
cuDevicePrimaryCtxRetain cuEventCreate cuEventDestroy cuEventDestroy_v2 cuEventQuery cuEventRecord cuEventSynchronize
cuGetProcAddress_v2 cuInit cuLaunchHostFunc cuMemFreeHost cuMemGetAddressRange_v2 cuMemHostAlloc cuMemHostRegister
cuMemHostRegister_v2 cuMemHostUnregister cuMemcpyAsync cuMemcpyBatchAsync cuMemcpyBatchAsync_v2 cuMemcpyDtoHAsync_v2
cuMemcpyHtoDAsync_v2 cuPointerGetAttribute cuPointerGetAttributes cuStreamCreate cuStreamDestroy cuStreamDestroy_v2
cuStreamSynchronize
"""
_NAMES = ("cuGetErrorName", "cuGetErrorString")
_NOT_INITIALIZED = 3  # CUDA_ERROR_NOT_INITIALIZED of cuda.h


def build(directory: Path) -> Path:
    """Compile it to ``directory``; that directory, for LD_LIBRARY_PATH.

    Raises:
        RuntimeError: there is no C compiler.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise RuntimeError("no C compiler for the stub of libcuda: apt-get install gcc")
    lines = [f"int {name}(void) {{ return {_NOT_INITIALIZED}; }}" for name in _SYMBOLS.split()]
    lines += [f'int {name}(int e, const char **p) {{ *p = "no CUDA here"; return 0; }}' for name in _NAMES]
    lines.append("int cuDriverGetVersion(int *v) { *v = 12020; return 0; }")
    directory.mkdir(parents=True, exist_ok=True)
    source = directory / "stub.c"
    source.write_text("\n".join(lines) + "\n")
    command = [compiler, "-shared", "-fPIC", "-o", str(directory / "libcuda.so.1"), str(source)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return directory
