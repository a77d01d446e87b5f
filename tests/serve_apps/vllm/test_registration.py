"""Naming the formats to vLLM: late, once, and without harm."""

import subprocess
import sys
from pathlib import Path

LOOK = """
import sys
import ebbtide_serve.vllm_plugin as plugin
before = set(sys.modules)
plugin.register()
plugin.register()
new = set(sys.modules) - before
assert not [name for name in sys.modules if name.partition(".")[0] in ("vllm", "torch", "ray")], new
assert len([one for one in sys.meta_path if "WhenImported" in type(one).__name__]) == 1
"""

# Something that looks like vLLM's registry; the formats' module is made up too.
REGISTRY = """
import sys
from pathlib import Path
root = Path(sys.argv[1])
for name in ("vllm", "vllm/model_executor", "vllm/model_executor/model_loader"):
    (root / name).mkdir()
    (root / name / "__init__.py").write_text("import sys\\nHERE = True\\n")
sys.path.insert(0, str(root))
from ebbtide_serve.vllm import registration
(root / "made_up.py").write_text(sys.argv[2])
registration.FORMATS = "made_up"
registration.register_formats()
import vllm.model_executor
assert "made_up" not in sys.modules, "the registry was not imported yet"
import vllm.model_executor.model_loader as registry
assert registry.HERE and registry.__spec__.origin.endswith("__init__.py")
assert not [one for one in sys.meta_path if "WhenImported" in type(one).__name__]
registration.register_formats()
print(getattr(registry, "registered", "nothing"))
"""


def run(code: str, *args: str) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", code, *args], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_registering_imports_neither_vllm_nor_torch() -> None:
    run(LOOK)


def test_the_formats_are_registered_when_the_registry_is_imported(tmp_path: Path) -> None:
    formats = (
        "import vllm.model_executor.model_loader as registry\n"
        "def register():\n    registry.registered = getattr(registry, 'registered', 0) + 1\n"
    )
    assert run(REGISTRY, str(tmp_path), formats).split() == ["2"], "once when imported, once when asked again"


def test_whatever_is_wrong_with_us_vllm_is_imported(tmp_path: Path) -> None:
    out = run(REGISTRY, str(tmp_path), "raise RuntimeError('broken')")
    assert out.startswith("nothing")
    assert "ebbtide's load formats are not available: RuntimeError('broken')" in out
