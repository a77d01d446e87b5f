"""``PYTHONPATH=SITE python -m benchmarks.gpu.bundle.proof``: import all of the line, start Ray, without a GPU.

A library of stubs stands for libcuda, which machines without a driver lack, and vLLM is told that the GPU is a Hopper.
Shows that nothing is missing; not that a kernel runs. Needs gcc, on a machine without libcuda.
"""

import ctypes
import importlib
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

from evidence.family import adopt_orphans, end_descendants

MODULES = (
    *("benchmarks.gpu.preempt", "benchmarks.gpu.storage", "benchmarks.gpu.line.__main__", "benchmarks.gpu.line.play"),
    *("benchmarks.gpu.line.model", "ebbtide.cli.main", "ebbtide.agent.node_agent", "ebbtide.helper.__main__"),
    *("ebbtide_autoscaler.actor.arbiter", "ebbtide_autoscaler.commands.pool", "ebbtide_autoscaler.commands.registry"),
    *(
        "ebbtide_serve.actuator",
        "ebbtide_serve.commands.keys",
        "ebbtide_serve.gateway.deployment",
        "ebbtide_serve.replica.deployment",
    ),
    *(
        "ebbtide_train.actuator",
        "ebbtide_train.verification.control_run",
        "ebbtide_train.worker.entry",
        "ebbtide_train.controller.leased_trainer",
    ),
    *(
        "ebbtide_train.pool_trainer",
        "ebbtide_train.run",
        "ebbtide_train.submission.training_job",
        "ebbtide_train.worker.training_rank",
    ),
    *("ebbtide_train.examples.stdlib_lm", "ebbtide_serve.vllm.engine", "ebbtide_serve.vllm.worker"),
    *("ebbtide_serve.vllm.load_formats", "ray", "ray.serve", "ray.train", "ray.dashboard.dashboard"),
    *("ray.dashboard.agent", "ray._private.workers.default_worker", "ray._private.log_monitor"),
    *("ray._private.runtime_env.agent.main", "ray.autoscaler._private.monitor", "kvikio", "fastsafetensors", "pynvml"),
    *("vllm.entrypoints.openai.api_server", "vllm.model_executor.models.llama", "vllm.v1.engine.core"),
    *("vllm.v1.attention.backends.flash_attn", "vllm.v1.executor.uniproc_executor", "vllm.v1.worker.gpu_model_runner"),
    *("vllm.v1.worker.gpu.model_runner", "transformers.models.llama.modeling_llama"),
)
FOR_BENCHMARKS = ("benchmarks.gpu.preempt", "benchmarks.gpu.storage", "kvikio", "fastsafetensors")
HOPPER = (9, 0)
RAY_STARTS_S = 120.0
STUBS = (
    *("cuCtxGetCurrent", "cuCtxSetCurrent", "cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain", "cuGetErrorString"),
    *("cuGetProcAddress_v2", "cuMemAddressFree", "cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemRelease"),
    *("cuMemGetAllocationGranularity", "cuMemSetAccess", "cuMemUnmap", "cuPointerGetAttribute"),
    "cuTensorMapEncodeTiled",
)
NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE: what each of them gives


def stub_libcuda(folder: Path) -> None:
    """Load a libcuda.so.1 that knows no device, if there is none here."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        source = folder / "stub.c"
        source.write_text("".join(f"int {name}(void) {{ return {NO_DEVICE}; }}\n" for name in STUBS))
        library = folder / "libcuda.so.1"
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(library), str(source)], check=True
        )
        ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)


def as_hopper() -> None:
    """Have vLLM take this machine for one with a Hopper GPU."""
    import torch  # noqa: PLC0415 - not on the path of the benchmarks alone
    import vllm.platforms  # noqa: PLC0415
    from vllm.platforms.cuda import NonNvmlCudaPlatform  # noqa: PLC0415
    from vllm.platforms.interface import DeviceCapability  # noqa: PLC0415

    torch.cuda.get_device_capability = lambda *_: HOPPER
    NonNvmlCudaPlatform.get_device_capability = classmethod(lambda cls, device_id=0: DeviceCapability(*HOPPER))
    NonNvmlCudaPlatform.get_device_name = classmethod(lambda cls, device_id=0: "NVIDIA H200")
    NonNvmlCudaPlatform.num_compute_units = classmethod(lambda cls, device_id=0: 132)
    vllm.platforms._current_platform = NonNvmlCudaPlatform()


def failures(modules: Sequence[str]) -> list[str]:
    """Import each; those that do not import, with the reason."""
    failed = []
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is missing on the machine too
            traceback.print_exc(limit=-3)
            failed.append(f"{name}: {error!r}"[:300])
        else:
            print(f"imported {name}", flush=True)
    return failed


def start_ray(folder: Path) -> str:
    """Start a head node as `ebbtide up` does, by the programs in the site, and end it; why it did not start."""
    adopt_orphans()
    start = "from ray.scripts.scripts import main; main()"
    done = subprocess.run(
        [
            *(sys.executable, "-c", start, "start", "--head", "--port=0", "--num-cpus=1"),
            *("--include-dashboard=true", f"--temp-dir={folder}", "--disable-usage-stats"),
        ],
        capture_output=True,
        text=True,
        timeout=RAY_STARTS_S,
    )
    end_descendants(grace_s=2.0)
    return "" if done.returncode == 0 else f"ray start ended with {done.returncode}: {done.stderr[-1500:]}"


def main() -> None:
    """Import all; with the word ``benchmarks`` only what the first part is for."""
    first = sys.argv[1:] == ["benchmarks"]
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # short: Ray makes sockets below it
        stub_libcuda(Path(folder))
        if not first:
            as_hopper()
        failed = failures(FOR_BENCHMARKS if first else MODULES)
        if not first and (why := start_ray(Path(folder) / "r")):
            failed.append(why)
    if failed:
        sys.exit("does not work:\n  " + "\n  ".join(failed))
    if not first:
        import torch  # noqa: PLC0415
        import vllm.vllm_flash_attn as flash  # noqa: PLC0415

        print(f"kernels: rms_norm {hasattr(torch.ops._C, 'rms_norm')}, FA3 {flash.FA3_AVAILABLE}")


if __name__ == "__main__":
    main()
