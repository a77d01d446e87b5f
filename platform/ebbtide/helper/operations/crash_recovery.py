"""What a killed helper left under way is brought to an end, by what can be read back; nothing is done a second time.

======== ============================================ ==================================================
was      what is read back                            then
======== ============================================ ==================================================
dump     this dump's image stands, committed          its processes are killed, DONE
dump     it does not                                  the processes run on, what was written goes, UNDONE
revive   CRIU says that it came to its end well       the processes count, DONE
revive   it does not                                  what is half made is killed, UNDONE
discard  -                                            the removal goes on (removing again is harmless), DONE
driver   where the driver says its processes stand    that is written down, READ BACK
======== ============================================ ==================================================

A CRIU that still runs is waited for first, however long it takes: it is never killed at its work.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ebbtide.helper.criu.criu_program import Runner
from ebbtide.helper.criu.image import read_manifest
from ebbtide.helper.errors import HelperError, Refused
from ebbtide.helper.journal.journal_state import Line
from ebbtide.helper.journal.operation import Operation, Workplace
from ebbtide.helper.journal.workload_states import Op, Step
from ebbtide.helper.operations.image_dump import finish, lead_back, stands
from ebbtide.helper.operations.image_removal import remove_image
from ebbtide.helper.operations.image_revival import conclude

_WHY = "the helper was killed meanwhile"
_ROUND_S = 60.0


def settle(place: Workplace, lines: Sequence[Line], ask_driver: Callable[[str], str]) -> str:
    """Bring one operation to its end.

    Args:
        place: where.
        lines: of the operation, from the journal, oldest first.
        ask_driver: where the workload of this name stands, in the driver's words.

    Returns:
        What was found, for people.
    """
    last = lines[-1]
    operation = Operation(place, lines[0])
    if last.op is Op.DUMP:
        return _settle_dump(operation, last)
    if last.op is Op.REVIVE:
        return _settle_revive(operation, last)
    if last.op is Op.DISCARD:
        remove_image(place.disk, Path(last.facts["image_dir"]))
        operation.note(Step.DONE)
        return f"{last.name}: its image is gone"
    state = ask_driver(last.name)
    operation.note(Step.READ_BACK, state=state)
    return f"{last.name}: {last.op.value} was under way, the driver says {state}"


def _settle_dump(operation: Operation, last: Line) -> str:
    _await_runner(operation, last)
    image_dir, work = Path(last.facts["image_dir"]), Path(last.facts["work"])
    manifest = stands(operation, image_dir)
    if manifest is None:  # guard: a dump is settled by its image
        lead_back(operation, work)
        operation.note(Step.UNDONE, why=_WHY)
        return f"{last.name}: its dump was called off, it runs on"
    # The rename was seen, not its sync: nothing may be killed before it would survive a power cut.
    operation.place.disk.sync_directory(image_dir.parent)  # guard: the rename is durable before a process is killed
    if last.step is Step.SEALED:
        operation.note(Step.PLACED)
    if last.step is Step.KILLED:
        operation.clear_run()
        operation.note(Step.DONE)
        return f"{last.name}: dumped"
    finish(operation, manifest)
    return f"{last.name}: dumped"


def _settle_revive(operation: Operation, last: Line) -> str:
    _await_runner(operation, last)
    image_dir = Path(last.facts["image_dir"])
    if last.step is Step.RESTORED:
        operation.clear_run()
        operation.note_revived(
            last.facts["revived_pid"],
            last.facts["revived_started"],
            last.facts["revived_generation"],
            last.facts.get("gpus", {}),  # a helper of before has not written it
        )
        return f"{last.name}: revived"
    try:
        manifest = read_manifest(image_dir)
    except Refused as error:  # guard: an image that went meanwhile is no image
        operation.clear_run()
        operation.note(Step.UNDONE, why=f"{_WHY}, and {error}")
        return f"{last.name}: not revived, and its image is gone"
    runner = _runner(operation, last)
    if runner is None:  # CRIU had not got its word
        operation.clear_run()
        operation.note(Step.UNDONE, why=_WHY)
        return f"{last.name}: not revived"
    try:
        conclude(operation, manifest, runner.code(), runner.started)
    except HelperError as error:
        return f"{last.name}: not revived: {error}"
    return f"{last.name}: revived"


def _runner(operation: Operation, last: Line) -> Runner | None:
    if "runner_pid" not in last.facts:
        return None
    return Runner(last.facts["runner_pid"], last.facts["runner_started"], operation.run)


def _await_runner(operation: Operation, last: Line) -> None:
    runner = _runner(operation, last)
    while runner is not None and not runner.wait(time.monotonic() + _ROUND_S):
        pass
