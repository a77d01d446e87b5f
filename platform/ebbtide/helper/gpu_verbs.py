"""Lock, checkpoint, restore, unlock: the driver's verbs on registered processes, journaled.

The order for a gang, deadlines and the reading back are `ebbtide.snapshot.driver.gang`'s.
"""

from collections.abc import Sequence

from ebbtide.helper.book import Entry
from ebbtide.helper.errors import HelperError, Lost, OutcomeUnknown, Undone
from ebbtide.helper.messages import DriverRequest, Lock, Restore
from ebbtide.helper.operation import Operation, Workplace
from ebbtide.helper.steps import Op, Step
from ebbtide.snapshot.driver.bounded import BoundedDriver
from ebbtide.snapshot.driver.errors import DriverError, GangError, GangLost, GangRefused
from ebbtide.snapshot.driver.gang import Pace, move
from ebbtide.snapshot.driver.gang_plan import Verb
from ebbtide.snapshot.driver.states import ProcessState

STATE_WAIT_S = 5.0  # a state is a look into the driver's memory; more means that the driver hangs


def move_all(place: Workplace, driver: BoundedDriver, request: DriverRequest, entries: Sequence[Entry]) -> None:
    """Do a verb for all of these processes: all of it, or back, or an error that says where each is.

    Raises:
        Undone: all are whole and where they were.
        OutcomeUnknown: some are not where they should be, or the driver does not say.
        Lost: some are lost.
    """
    operations = [Operation.on(place, Op(request.verb), entry) for entry in entries]
    pids = tuple(entry.pid for entry in entries)
    pace = Pace(lock_s=request.timeout_ms / 1000) if isinstance(request, Lock) else Pace()
    gpu_maps = dict.fromkeys(pids, request.gpu_map) if isinstance(request, Restore) and request.gpu_map else None
    try:
        move(Verb(request.verb), driver, pids, pace=pace, gpu_maps=gpu_maps)
    except GangError as error:
        step = Step.UNDONE if isinstance(error, GangRefused) else Step.READ_BACK
        for operation in operations:
            operation.note(step, state=_word(error.states.get(operation.first.pid)))
        raise _ours(error) from error
    for operation in operations:
        operation.note(Step.DONE)


def stand(driver: BoundedDriver, pids: Sequence[int]) -> dict[int, str]:
    """Where the driver says that each process is, in lower case; "unknown" with the reason where it does not say."""
    answers = driver.states(tuple(pids), STATE_WAIT_S)
    return {pid: _word(answer) for pid, answer in answers.items()}


def _word(answer: ProcessState | DriverError | None) -> str:
    if isinstance(answer, ProcessState):
        return answer.name.lower()
    return "unknown" if answer is None else f"unknown: {answer}"


def _ours(error: GangError) -> HelperError:
    kind = Undone if isinstance(error, GangRefused) else Lost if isinstance(error, GangLost) else OutcomeUnknown
    remedy = {Undone: "use another tier", Lost: "kill the rest, fall back to the last durable state"}
    return kind(str(error), remedy.get(kind, "read back with state; kill what stays so"))
