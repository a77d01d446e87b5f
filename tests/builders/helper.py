"""Journals and process trees of the helper."""

import os

from ebbtide.helper.criu.proc_tree import Member, Opened
from ebbtide.helper.journal.journal_state import Line
from ebbtide.helper.journal.workload_states import Op, Step
from tests.platform.diagnostics import machines


class Processes(machines.Tree):
    """A /proc to fill."""

    def process(
        self, pid: int, parent: int, *, name: str = "python", environ: str | None = "", kib: int = 1000
    ) -> None:
        fields = " ".join(["S", str(parent), *["0"] * 17, "4711", *["0"] * 5])
        self.file(f"/proc/{pid}/stat", f"{pid} ({name}) {fields}")
        self.file(f"/proc/{pid}/comm", f"{name}\n")
        self.file(f"/proc/{pid}/status", f"Name:\t{name}\nVmSwap:\t 24 kB\nRssAnon:\t {kib} kB\n")
        if environ is not None:
            self.file(f"/proc/{pid}/environ", environ.replace(" ", "\0"))

    def opens(self, pid: int, fd: int, target: str) -> None:
        place = self.root / f"proc/{pid}/fd/{fd}"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)


def line(name: str, op: Op = Op.REGISTER, step: Step = Step.DONE, operation: str = "one") -> Line:
    return Line(
        at_s=0.0, operation=operation, op=op, step=step, name=name, pid=100, started=7, boot="boot", generation=1, uid=0
    )


GOOD = Member(
    pid=10, started=1, name="python", uid=0, session=10, tty=0, state="S", tracer=0, foreign_namespaces=(),
    opened=(Opened(0, "/dev/null", os.O_RDONLY), Opened(1, "/log", os.O_WRONLY | os.O_APPEND, 5)),
    mapped=frozenset({"/usr/bin/python", "/memfd:x (deleted)"}), cwd="/", own_bytes=1,
)  # fmt: skip
