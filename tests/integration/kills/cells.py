"""One cell of the table: bring the pool into a move, kill one process, repair what no pool can repair by itself, judge.

What is repaired from outside is what an installation's supervisor does: a machine whose raylet died comes back with
another node id, a GCS is started again, and after the loss of the whole cluster somebody starts a new one and runs
`ebbtide up`.
"""

import time
from dataclasses import dataclass, field
from typing import Any

from tests.integration.kills import judge
from tests.integration.kills.cluster import Cluster
from tests.integration.kills.evidence import Evidence
from tests.integration.kills.judge import Finding
from tests.integration.kills.moves import BESIDE, TRICKLE_S, WAYS, Move
from tests.integration.kills.pool import Pool, Stuck, brief
from tests.integration.kills.processes import Role, Victim, find
from tests.integration.kills.users import Answer, Saw, Users, counted

RECOVER_S = 120.0  # from the kill (or the repair) to a training job and an answered request, on a loaded machine
REPAIR_AFTER_S = 2.0  # what a supervisor takes to notice
APPEAR_S = 60.0  # a process that comes with the move: an engine in a starting replica, a worker in a new gang
COMES_WITH_A_MOVE = frozenset({Role.REPLICA, Role.ENGINE})

REPLACED = frozenset(
    {Role.ARBITER, Role.GATEWAY, Role.DRIVER, Role.TRAIN_CONTROLLER, Role.SERVE_CONTROLLER, Role.AGENT, Role.GCS_MEMORY}
)
"""Whose part must be taken by another process, or the pool only seems to have recovered: silence is noticed late."""

COVERS: dict[Role, tuple[int, ...]] = {
    Role.ARBITER: (6, 8),
    Role.REPLICA: (3, 6),
    Role.ENGINE: (3, 6),
    Role.WORKER: (2, 6),
    Role.GATEWAY: (6,),
    Role.DRIVER: (2, 6),
    Role.TRAIN_CONTROLLER: (2, 6),
    Role.SERVE_CONTROLLER: (6,),
    Role.AGENT: (1, 6),
    Role.RAYLET: (2, 3, 6),
    Role.GCS_REDIS: (6, 8),
    Role.GCS_MEMORY: (2, 6),
}
"""The promises by which what was seen is allowed; 1 and 4 are judged in every cell."""


@dataclass
class Cell:
    """One kill and what came of it."""

    role: Role
    move: Move
    ran: bool = False
    why_not: str = ""  # the cell cannot exist, or could not be reached
    possible: bool = True  # False: no such process exists in that move
    seen: str = ""  # the pool at the moment of the kill
    saw: dict[str, int] = field(default_factory=dict)  # users, by what they saw
    lost_steps: int = 0  # finished steps that had to be run again
    replaced_s: float = 0.0  # from the kill until another process plays the same part; 0: nobody must
    answered_s: float = 0.0  # from the kill to the first answer to a question asked after it
    trained_s: float = 0.0  # from the kill to the first step after it
    findings: list[Finding] = field(default_factory=list)
    at: str = field(default_factory=lambda: time.strftime("%Y-%m-%d %H:%M:%S"))

    @property
    def clean(self) -> bool:
        """Nothing was broken, and the cell ran or cannot exist."""
        return not self.findings and (self.ran or not self.possible)


def run_cell(pool: Pool, users: Users, evidence: Evidence, role: Role, move: Move) -> Cell:
    """Do it. What goes wrong on the way becomes a finding, not an exception."""
    cell = Cell(role, move)
    way = BESIDE.get(move, WAYS[move]) if role in COMES_WITH_A_MOVE else WAYS[move]
    try:
        way.reach(pool, users)
        before = find(role, pool)
        cell.seen = way.enter(pool, users)
        # A move can bring a process of its own, and end the one that was there before.
        fresh = role in COMES_WITH_A_MOVE or before is None or not before.process.alive
        victim = _appears(role, pool) if fresh else before
    except Stuck as error:
        users.hang_up(users.waiting)
        cell.why_not = str(error)
        cell.findings.append(Finding(6, f"the move was not reached: {error}"))
        return cell
    if victim is None:
        cell.possible = False
        cell.why_not = f"there is no {role.value} then"
        return cell
    lost_before = evidence.crash_lost_steps()
    step_before = _newest_step(evidence)
    gateway = find(Role.GATEWAY, pool)
    killed_s = time.time()
    victim.kill()
    cell.ran = True
    try:
        repair(pool, victim)
        if role in REPLACED:
            _replaced(pool, cell, victim, killed_s)
            step_before = _newest_step(evidence)
        recover_both(pool, users, cell, killed_s, step_before)
    except (Stuck, AssertionError) as error:
        cell.findings.append(Finding(6, f"no recovery: {error}"))
    users.ebb()
    if not users.settled(90):
        cell.findings.append(Finding(3, f"{users.waiting} users still wait 90 s after all had recovered"))
    answers = users.since(killed_s)
    cell.saw = counted(answers)
    gateway_died = gateway is None or not gateway.process.alive
    cell.findings += judge.users(answers, [role], gateway_died=gateway_died)
    cell.findings += evidence.findings()
    cell.lost_steps = evidence.crash_lost_steps() - lost_before
    return cell


def _appears(role: Role, pool: Pool) -> Victim | None:
    """A process that is still to come in this move."""
    deadline_s = time.monotonic() + (APPEAR_S if role in COMES_WITH_A_MOVE | {Role.WORKER} else 3.0)
    while time.monotonic() < deadline_s:
        found = find(role, pool)
        if found is not None:
            return found
        time.sleep(0.02)
    return None


def _replaced(pool: Pool, cell: Cell, victim: Victim, killed_s: float) -> None:
    part = Role.DRIVER if victim.role is Role.GCS_MEMORY else victim.role
    deadline_s = time.monotonic() + RECOVER_S
    while time.monotonic() < deadline_s:
        now = find(part, pool)
        if now is not None and now.process.alive and now.process.started > victim.process.started:
            cell.replaced_s = round(time.time() - killed_s, 2)
            return
        time.sleep(0.1)
    raise Stuck(f"no other {part.value} within {RECOVER_S:g} s; {brief(pool.look() or {})}")


def _newest_step(evidence: Evidence) -> int:
    return max((line.step for line in evidence.steps.read()), default=-1)


def repair(pool: Pool, victim: Victim) -> None:
    """What a supervisor does after such a death."""
    if victim.role is Role.RAYLET:
        (machine,) = [name for name, raylet in pool.cluster.machines.items() if raylet.pid == victim.process.pid]
        pool.learn_nodes()
        del pool.cluster.machines[machine]
        time.sleep(REPAIR_AFTER_S)
        pool.cluster.add_machine(machine)
        pool.learn_nodes()
    elif victim.role is Role.GCS_REDIS:
        time.sleep(REPAIR_AFTER_S)
        pool.cluster.restart_gcs()
    elif victim.role is Role.GCS_MEMORY:
        pool.learn_nodes()
        time.sleep(REPAIR_AFTER_S)
        pool.cluster.stop()
        pool.cluster = Cluster(redis=False)
        pool.cluster.start()
        pool.learn_nodes()
        pool.up()


def recover_both(pool: Pool, users: Users, cell: Cell, killed_s: float, step_before: int) -> None:
    """Until a user who asked after the kill has his answer and the job has finished a new step."""
    users.ebb()
    users.trickle(every_s=TRICKLE_S)
    deadline_s = time.monotonic() + RECOVER_S
    while not (cell.answered_s and cell.trained_s):
        if time.monotonic() > deadline_s:
            missing = " and ".join(
                what for what, at_s in (("no answer", cell.answered_s), ("no step", cell.trained_s)) if not at_s
            )
            raise Stuck(f"{missing} within {RECOVER_S:g} s; {brief(pool.look() or {})}")
        good = next((answer for answer in users.since(killed_s) if _good(answer, killed_s)), None)
        if good is not None and not cell.answered_s:
            cell.answered_s = round(good.asked_s + good.took_s - killed_s, 2)
        status = pool.look()
        if not cell.trained_s and status is not None and _trains(pool.job(status), step_before):
            cell.trained_s = round(time.time() - killed_s, 2)
        time.sleep(0.05)


def _trains(job: dict[str, Any], step_before: int) -> bool:
    return job["state"] == "running" and int(job["step"]) > step_before + 1


def _good(answer: Answer, killed_s: float) -> bool:
    return answer.asked_s > killed_s and answer.saw in (Saw.OK, Saw.HELD)
