"""A directory for one replica's caches, and the variables by which its engine finds them.

Node-local, mode 0700, named after the process: one that is left of a dead process is removed by the next replica that
starts there.

Not guaranteed: caches that tools keep elsewhere whatever they are told.
"""

import re
import secrets
import shutil
from pathlib import Path

from ebbtide.system.process import is_alive

_NAME = re.compile(r"(\d+)-(\d+)-[0-9a-f]+(\.part)?")
# Below the replica's directory; each is a variable of the tool that fills it.
_PLACES = {
    "VLLM_CACHE_ROOT": "vllm",  # torch_compile_cache, modelinfos, deep_gemm, ...
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "CUDA_CACHE_PATH": "cuda",  # the driver's own compiler
}


def own_directory(parent: Path, pid: int, started: int) -> Path:
    """A new name for a process's directory, below ``parent``; nothing is made."""
    return parent / f"{pid}-{started}-{secrets.token_hex(4)}"


def cache_environment(directory: Path) -> dict[str, str]:
    """The variables, for before the engine is imported."""
    return {name: str(directory / place) for name, place in _PLACES.items()}


def remove_left_over(parent: Path) -> list[Path]:
    """Remove directories of processes that have ended; which ones."""
    gone = []
    for path in parent.iterdir() if parent.is_dir() else ():
        name = _NAME.fullmatch(path.name)
        if name is not None and not is_alive(int(name[1]), int(name[2])):
            shutil.rmtree(path, ignore_errors=True)
            gone.append(path)
    return gone
