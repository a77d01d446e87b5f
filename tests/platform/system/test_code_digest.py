"""Which code a process runs: the same sources give the same digest anywhere, and any change another one."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
ASK = (
    "import sys; sys.path[:0] = sys.argv[1:]; from ebbtide.system.code_digest import code_digest; print(code_digest())"
)


def digest(*folders: Path) -> str:
    done = subprocess.run([sys.executable, "-c", ASK, *map(str, folders)], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_it_follows_the_sources_and_not_where_they_are(tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere"
    shutil.copytree(ROOT / "platform", copy, ignore=shutil.ignore_patterns("__pycache__"))
    ours = digest(ROOT / "platform")
    assert len(ours) == 12 and digest(copy) == ours
    changed = copy / "ebbtide" / "client" / "messages.py"
    changed.write_text(changed.read_text() + "# changed\n")
    assert digest(copy) != ours
    changed.write_text(changed.read_text().removesuffix("# changed\n"))
    assert digest(copy) == ours
    (copy / "ebbtide" / "client" / "another.py").write_text("")
    assert digest(copy) != ours
