"""A real pytest that hangs, with a process that got away from it: the part names both, goes on, and leaves nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

HANGS = """
import subprocess, sys, time
from pathlib import Path

DAEMON = '''
import os, signal, sys, time
if os.fork(): os._exit(0)
os.setsid()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1], "w").write(str(os.getpid()))
time.sleep(600)
'''

def test_before():
    pass

def test_hangs():
    subprocess.run([sys.executable, "-c", DAEMON, "pid"])
    while True:
        time.sleep(1)

def test_after():
    pass
"""

# A part ends every descendant of its process, so it has one of its own here.
RUN = """
import json, sys, time
from dataclasses import asdict
from ci.part import Part, Unit, run_part
units = [(Unit("hangs", ("-q", "test_hangs.py")), 6.0), (Unit("good", ("-q", "test_good.py")), 60.0)]
part = Part("clusters")
run_part(part, units, until_s=time.monotonic() + 120, tries=int(sys.argv[1]))
print("\\n" + json.dumps(asdict(part) | {"clean": part.clean}))
"""


def test_the_part_goes_on_names_what_hung_and_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "test_hangs.py").write_text(HANGS)
    (tmp_path / "test_good.py").write_text("def test_good():\n    pass\n")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", RUN, "1"], cwd=tmp_path, env=env, capture_output=True, timeout=200)
    assert done.returncode == 0, done.stderr.decode()
    part = json.loads(done.stdout.splitlines()[-1])
    assert part["outcomes"] == {"test_hangs.py::test_before": "passed", "test_good.py::test_good": "passed"}
    assert part["cut_off"] == ["test_hangs.py::test_hangs"]
    assert part["untested"] == ["test_hangs.py::test_after"]
    assert part["clean"] is False
    assert part["notes"][0].startswith("hangs was cut off after ")
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists(), "what it had started lives on"
