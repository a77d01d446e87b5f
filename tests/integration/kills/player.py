"""Playing a schedule of mishaps against a pool, mending it, and judging at the quiet point after each round.

What an action meets is not decided by the seed: a process that is not there cannot be killed, and is skipped. What is
mended from outside is what a supervisor does (see ``cells``): machines come back, a GCS is started again.
"""

import heapq
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tests.integration.kills import judge
from tests.integration.kills.cells import Cell, recover_both
from tests.integration.kills.chaos import ROUND_S, Action, calm_of, round_of
from tests.integration.kills.cluster import Process
from tests.integration.kills.evidence import Evidence
from tests.integration.kills.eye import Refused, Unanswered
from tests.integration.kills.judge import Finding
from tests.integration.kills.moves import SETTLE_S, Move, trains_everywhere
from tests.integration.kills.pool import Pool, Stuck
from tests.integration.kills.processes import Role, find
from tests.integration.kills.users import Users, counted

TOLD = 40  # last actions that a failing run prints
LOOK_AFTER_S = 1.0  # how often what fell over by itself is mended
STREAM_KILLERS_FOR_AN_ERROR = 2  # a request is retried once: it takes two deaths for its user to see an error


@dataclass
class Round:
    """One round and its verdict."""

    number: int
    done: list[str] = field(default_factory=list)
    saw: dict[str, int] = field(default_factory=dict)
    answered_s: float = 0.0
    trained_s: float = 0.0
    settled_s: float = 0.0
    crash_lost_steps: int = 0
    findings: list[Finding] = field(default_factory=list)


@dataclass
class Player:
    """Plays rounds; one per run."""

    pool: Pool
    users: Users
    evidence: Evidence
    seed: int
    told: deque[str] = field(default_factory=lambda: deque(maxlen=TOLD))
    _due: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _numbers: Any = field(default_factory=itertools.count)
    _stopped: list[Process] = field(default_factory=list)
    _away: dict[str, float] = field(default_factory=dict)  # machines that come back by an action of ours
    _struck: list[Role] = field(default_factory=list)  # who was killed or paused in this round
    _stopped_gateways: list[Process] = field(default_factory=list)
    _gateway_died: bool = False
    _commands: list["subprocess.Popen[str]"] = field(default_factory=list)
    _now: Round = field(default_factory=lambda: Round(-1))

    def play(self, number: int) -> Round:
        """One round with its quiet point."""
        return self._played(number, round_of(self.seed, number), ROUND_S)

    def calm(self, number: int, for_s: float) -> Round:
        """A stretch in which nobody kills, with its quiet point."""
        return self._played(number, calm_of(self.seed, for_s), for_s)

    def _played(self, number: int, actions: Sequence[Action], for_s: float) -> Round:
        self._now, self._struck, self._gateway_died = Round(number), [], False
        self._stopped_gateways.clear()
        began_s, began = time.time(), time.monotonic()
        lost_before = self.evidence.crash_lost_steps()
        for action in actions:
            self._at(began + action.at_s, lambda action=action: self._do(action))  # type: ignore[misc]
        self._run_until(began + for_s)
        try:
            self._quiet(self._now)
        except (Stuck, AssertionError, subprocess.SubprocessError) as error:
            self._now.findings.append(Finding(6, f"round {number} did not come to rest: {error}"))
        # One that hangs while Serve's controller comes back is replaced by it, as it ought to be.
        self._gateway_died = self._gateway_died or not all(one.alive for one in self._stopped_gateways)
        answers = self.users.since(began_s)
        self._now.saw = counted(answers)
        self._now.findings += judge.users(
            answers, self._struck, gateway_died=self._gateway_died, retries_used_up=self._retries_used_up()
        )
        self._now.findings += self.evidence.findings()
        self._now.crash_lost_steps = self.evidence.crash_lost_steps() - lost_before
        return self._now

    def _retries_used_up(self) -> bool:
        return sum(role in judge.KILLS_STREAMS for role in self._struck) >= STREAM_KILLERS_FOR_AN_ERROR

    # ---- time

    def _at(self, due_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._due, (due_s, next(self._numbers), what))

    def _run_until(self, end_s: float) -> None:
        looked_s = 0.0
        while time.monotonic() < end_s:
            while self._due and self._due[0][0] <= time.monotonic():
                heapq.heappop(self._due)[2]()
            if time.monotonic() - looked_s > LOOK_AFTER_S:
                self._mend_what_fell()
                looked_s = time.monotonic()
            time.sleep(0.02)

    def _say(self, what: str) -> None:
        line = f"[{time.strftime('%H:%M:%S')}] {what}"
        self._now.done.append(line)
        self.told.append(line)

    # ---- actions

    def _do(self, action: Action) -> None:
        self._say(str(action))
        with suppress(Refused, Unanswered):  # while no arbiter answers, nobody can be asked to drain or freeze
            _ACTIONS[action.kind](self, dict(action.values))

    def trickle(self, values: dict[str, Any]) -> None:
        """Users come."""
        self.users.trickle(every_s=values["every_s"], tokens=values["tokens"])

    def ebb(self, _: dict[str, Any]) -> None:
        """They stop coming."""
        self.users.ebb()

    def flood(self, values: dict[str, Any]) -> None:
        """Many at once."""
        self.users.ask(tokens=values["tokens"], count=values["count"])

    def hang_up(self, values: dict[str, Any]) -> None:
        """Some leave in the middle."""
        self.users.hang_up(values["count"])

    def kill(self, values: dict[str, Any]) -> None:
        """kill -9."""
        self._strike(Role[values["role"]], signal.SIGKILL)

    def pause(self, values: dict[str, Any]) -> None:
        """SIGSTOP, and SIGCONT later."""
        struck = self._strike(Role[values["role"]], signal.SIGSTOP)
        if struck is not None:
            self._stopped.append(struck)
            # In time also while a machine is being started, which takes this thread up to half a minute.
            timer = threading.Timer(values["for_s"], self._go_on, [struck])
            timer.daemon = True
            timer.start()
            if Role[values["role"]] is Role.GATEWAY:
                self._stopped_gateways.append(struck)

    def storm(self, values: dict[str, Any]) -> None:
        """The arbiter dies again and again, in the middle of its recovery too."""
        for number in range(values["count"]):
            due_s = time.monotonic() + number * values["gap_s"]
            self._at(due_s, lambda: self.kill({"role": Role.ARBITER.name}))

    def power_cut(self, values: dict[str, Any]) -> None:
        """All of a machine dies at once, and it comes back later with another node id."""
        machine = values["machine"]
        if set(self.pool.cluster.machines) < {"head", "a", "b"}:
            return
        self._note_gateway(self.pool.cluster.machines[machine])
        self._struck.append(Role.RAYLET)
        self.pool.learn_nodes()
        self.pool.cluster.kill_machine(machine)
        self._away[machine] = time.monotonic() + values["back_after_s"]

    def config(self, values: dict[str, Any]) -> None:
        """`ebbtide up` of a changed file, or `up --rollback`; not waited for."""
        if values.get("rollback"):
            arguments = ["up", "--rollback"]
        else:
            self.pool.write_file(**values)
            arguments = ["up", str(self.pool.file)]
        log = (self.pool.home / "commands.log").open("a")
        with log:
            self._commands.append(
                subprocess.Popen(
                    [sys.executable, "-m", "ebbtide.cli", *arguments],
                    env={**os.environ, **self.pool.cluster.env},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    text=True,
                )
            )

    def drain(self, values: dict[str, Any]) -> None:
        """A person drains a node, and thinks better of it later."""
        node = self.pool.node_of(values["machine"])
        if node:
            self.pool.eye.ask("drain_node", node, "chaos", timeout_s=6.0)
            self._at(time.monotonic() + values["for_s"], self._undrain)

    def freeze(self, values: dict[str, Any]) -> None:
        """A person freezes the pool for a while."""
        self.pool.eye.ask("freeze", "chaos", timeout_s=6.0)
        self._at(time.monotonic() + values["for_s"], self._unfreeze)

    # ---- striking and mending

    def _strike(self, role: Role, how: signal.Signals) -> Process | None:
        victim = find(role, self.pool)
        if victim is None:
            self._say(f"  no {role.value} to be found")
            return None
        self._struck.append(role)
        if role is Role.GATEWAY and how is signal.SIGKILL:
            self._gateway_died = True
        if role is Role.RAYLET:
            self._note_gateway(victim.process)
            self.pool.learn_nodes()
        with suppress(ProcessLookupError):
            os.kill(victim.process.pid, how)
        self._say(f"  {how.name} {role.value} pid {victim.process.pid}")
        return victim.process

    def _note_gateway(self, raylet: Process) -> None:
        gateway = find(Role.GATEWAY, self.pool)
        if gateway is None or gateway.process.env.get("RAY_RAYLET_PID") == str(raylet.pid):
            self._gateway_died = True

    def _go_on(self, stopped: Process) -> None:
        with suppress(ProcessLookupError):
            if stopped.alive:
                os.kill(stopped.pid, signal.SIGCONT)
        with suppress(ValueError):  # both this thread and the timer's may come here
            self._stopped.remove(stopped)

    def _mend_what_fell(self) -> None:
        cluster = self.pool.cluster
        if not cluster.gcs().alive:
            cluster.restart_gcs()
            self._say("  the GCS was started again")
        for machine, raylet in list(cluster.machines.items()):
            if not raylet.alive and machine != "head":
                self.pool.learn_nodes()
                del cluster.machines[machine]
                self._away[machine] = time.monotonic()
        for machine, due_s in list(self._away.items()):
            if time.monotonic() >= due_s:
                del self._away[machine]
                cluster.add_machine(machine)
                self.pool.learn_nodes()
                self._say(f"  machine {machine} came back")

    def _undrain(self) -> None:
        for node in (self.pool.look() or {}).get("notices", []):
            if node["about"] == "node":
                with suppress(Refused, Unanswered):
                    self.pool.eye.ask("undrain_node", node["name"], timeout_s=6.0)

    def _unfreeze(self) -> None:
        with suppress(Refused, Unanswered):
            self.pool.eye.ask("unfreeze", timeout_s=6.0)

    def _quiet(self, now: Round) -> None:
        """Mend everything, wait until the pool serves and trains, then until it rests."""
        while self._due:
            heapq.heappop(self._due)[2]()
        for stopped in list(self._stopped):
            self._go_on(stopped)
        self._away = dict.fromkeys(self._away, 0.0)
        time.sleep(LOOK_AFTER_S)  # what was killed last is seen to be dead
        self._mend_what_fell()
        for command in self._commands:
            command.wait(120)
        self._commands.clear()
        self.pool.status()
        self._unfreeze()
        self._undrain()
        quiet_s = time.time()
        cell = Cell(Role.ARBITER, Move.IDLE)
        step = max((line.step for line in self.evidence.steps.read()), default=-1)
        recover_both(self.pool, self.users, cell, quiet_s, step)
        now.answered_s, now.trained_s = cell.answered_s, cell.trained_s
        self.users.ebb()
        if not self.users.settled(90):
            now.findings.append(Finding(3, f"{self.users.waiting} users still wait 90 s after all was mended"))
        self.pool.wait("all slots train", lambda s: trains_everywhere(self.pool, s), SETTLE_S, every_s=0.1)
        now.settled_s = round(time.time() - quiet_s, 1)
        now.findings += self.evidence.orphans()


_ACTIONS: dict[str, Callable[[Player, dict[str, Any]], None]] = {
    "trickle": Player.trickle,
    "ebb": Player.ebb,
    "flood": Player.flood,
    "hang up": Player.hang_up,
    "kill": Player.kill,
    "pause": Player.pause,
    "arbiter storm": Player.storm,
    "power cut": Player.power_cut,
    "config": Player.config,
    "drain": Player.drain,
    "freeze": Player.freeze,
}


def as_json(played: Round) -> dict[str, Any]:
    """A round as plain JSON types."""
    found: dict[str, Any] = json.loads(json.dumps(played.__dict__, default=str))
    return found
