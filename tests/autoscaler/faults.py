"""Seeded bad luck, kind by kind: each does something to a running pool, and says whether it could.

The kinds, by what fails:
- messages: `weather` (lost, late, repeated; what is late or repeated comes after newer ones: out of order);
- what the arbiter sees: `silence`, `mute`, `blind` (stale signals), `skew` and `clock_jump` (wrong clocks);
- the arbiter and its ledger: `kill_arbiter`, `doom` (death between two steps of a tick), `pause`, `disk_full` (ENOSPC);
- replicas: `kill_actor`, `kill_engine`, `never_start`, `park_badly`, `change` (another model), `stranger`;
- jobs: `kill_rank`, `hang`, `refuse`, `kill_driver`, `cancel`, `slow_checkpoints`, `no_space`, `corrupt`, `poison`;
- machines and people: `lose_node`, `never_come`, `drain`, `undrain`, `freeze`, `hold`, `release`, `kill_gateway`;
- traffic: `flap`, `more_jobs`.
"""

from collections.abc import Callable
from dataclasses import replace
from random import Random

from ebbtide.pool.events import (
    EndpointDeclared,
    JobHeld,
    JobReleased,
    NodeDraining,
    NodeUndrained,
    PoolFrozen,
    PoolUnfrozen,
)
from ebbtide.pool.ids import JobName
from ebbtide.pool.spec import WorkloadClass
from ebbtide.pool.transitions import JobState
from ebbtide_testing.cluster.fake_gang import FakeDriver, FakeGang
from tests.autoscaler.closed_loop import Loop, a_job
from tests.autoscaler.pools import Luck
from tests.autoscaler.sim_arbiter import DEATHS

RATES = (0.0, 0.0, 0.3, 1.0, 4.0)
CLASSES = (WorkloadClass.PREEMPTIBLE,) * 4 + (WorkloadClass.SEMI_PREEMPTIBLE,) * 2 + (WorkloadClass.NON_PREEMPTIBLE,)


class Faults:
    """What may go wrong in one pool."""

    def __init__(self, loop: Loop, random: Random, *, warm: bool, luck: Luck) -> None:
        self.loop, self.random, self.warm, self.luck = loop, random, warm, luck
        self.returning = 0  # machines that are to come back
        self.nodes_lost = 0
        self.jobs = 0
        self.kinds: list[tuple[Callable[[], bool], float]] = [
            (self.flap, 4.0),
            (self.weather, 1.0),
            (self.silence, 2.0),
            (self.mute, 1.5),
            (self.blind, 1.0),
            (self.skew, 0.7),
            (self.clock_jump, 0.5),
            (self.kill_arbiter, 0.3),
            (self.doom, 0.7),
            (self.pause, 0.3),
            (self.disk_full, 0.4),
            (self.kill_actor, 3.0),
            (self.kill_engine, 3.0),
            (self.never_start, 1.0),
            (self.park_badly, 0.5),
            (self.change, 0.7),
            (self.stranger, 1.0),
            (self.kill_rank, 4.0),
            (self.hang, 0.3),
            (self.refuse, 1.0),
            (self.kill_driver, 0.3),
            (self.cancel, 0.3),
            (self.slow_checkpoints, 1.0),
            (self.no_space, 1.0),
            (self.corrupt, 2.5),
            (self.poison, 0.3),
            (self.lose_node, 0.4),
            (self.drain, 0.4),
            (self.undrain, 1.0),
            (self.freeze, 0.3),
            (self.hold, 0.7),
            (self.release, 2.0),
            (self.kill_gateway, 0.7),
            (self.more_jobs, 0.5),
            (self.never_come, 0.3),
        ]
        if luck.weights:
            mine = [kind for kind, _ in self.kinds if kind.__name__ in luck.weights]
            self.kinds = [(kind, luck.weights[kind.__name__]) for kind in mine]
        if luck.quick:
            loop.cluster.serve.start_s = (0.3, 1.5)
        self._well()

    def strike(self) -> str:
        """One fault that has an effect; its kind."""
        kinds = [kind for kind, _ in self.kinds]
        weights = [weight for _, weight in self.kinds]
        while True:
            [kind] = self.random.choices(kinds, weights)
            if kind():
                return kind.__name__

    def end(self) -> None:
        """Whatever lasts is over, but for what was broken for good."""
        loop, serve = self.loop, self.loop.cluster.serve
        loop.weather.lost = loop.weather.late = loop.weather.repeated = 0.0
        loop.cluster.machines.silent_agents.clear()
        loop.cluster.scheduler.strangers_leave()
        loop.blind = serve.never_up = serve.load_fails = serve.refuses = False
        serve.park_fails = 0.0
        self._well()
        if loop.provider is not None:
            loop.provider.never_come = False
        if loop.ledger is not None:
            loop.ledger.room_bytes = None
        if loop.arbiter is not None:
            loop.arbiter.doom = ""  # else it dies of what it is told next, and nobody tells it to its successor
        for gateway in loop.gateways:
            gateway.mute, gateway.skew_s = False, 0.0
        for driver in loop.drivers.values():
            driver.refuses_to_park = driver.no_space = False
            driver.commit_s = (0.1, 2.0)

    def _well(self) -> None:
        self.loop.cluster.serve.load_s = (0.3, 2.0) if self.luck.quick else (1.0, 6.0)

    # ---- what is there to be struck

    def _later(self, least_s: float, most_s: float, what: Callable[[], None]) -> None:
        self.loop.clock.call_later(self.random.uniform(least_s, most_s), what)

    def _drivers(self) -> list[FakeDriver]:
        return [driver for driver in self.loop.drivers.values() if driver.alive]

    def _gangs(self) -> list[FakeGang]:
        return [driver.gang for driver in self.loop.drivers.values() if driver.gang is not None]

    # ---- messages, and what the arbiter sees

    def weather(self) -> bool:
        """The network gets better or worse."""
        weather, before = self.loop.weather, replace(self.loop.weather)
        weather.lost, weather.late, weather.repeated = (self.random.choice(of) for of in self.luck.weather)
        return (before.lost, before.late, before.repeated) != (weather.lost, weather.late, weather.repeated)

    def silence(self) -> bool:
        """A node's agent is not heard for a while."""
        silent, nodes = self.loop.cluster.machines.silent_agents, self.loop.cluster.nodes
        fresh = [node for node in nodes if node not in silent]
        if not fresh:
            return False
        node = self.random.choice(fresh)
        silent.add(node)
        self._later(0.5, 15.0, lambda: silent.discard(node))
        return True

    def mute(self) -> bool:
        """A gateway serves on and is not heard: its signals get stale."""
        gateway = self.random.choice(self.loop.gateways)
        if gateway.mute:
            return False
        gateway.mute = True

        def heard_again() -> None:
            gateway.mute = False

        self._later(0.5, 12.0, heard_again)
        return True

    def blind(self) -> bool:
        """Serve and Ray do not say who lives."""
        if self.loop.blind:
            return False
        self.loop.blind = True

        def sees_again() -> None:
            self.loop.blind = False

        self._later(0.5, 8.0, sees_again)
        return True

    def skew(self) -> bool:
        """A gateway's clock is wrong."""
        self.random.choice(self.loop.gateways).skew_s = self.random.uniform(-30.0, 30.0)
        return True

    def clock_jump(self) -> bool:
        """The arbiter's clock is set: forwards or backwards."""
        self.loop.skew_s += self.random.choice([1.0, 30.0, 300.0, -1.0, -10.0, -300.0]) * self.random.random()
        return True

    # ---- the arbiter

    def kill_arbiter(self) -> bool:
        """SIGKILL between two ticks."""
        alive = self.loop.arbiter is not None
        self.loop.kill_arbiter(self.random.uniform(0.2, 6.0))
        return alive

    def doom(self) -> bool:
        """SIGKILL amid the next tick."""
        return self.loop.doom_arbiter(self.random.choice(DEATHS))

    def pause(self) -> bool:
        """SIGSTOP."""
        return self.loop.pause_arbiter(self.random.uniform(0.5, 12.0))

    def disk_full(self) -> bool:
        """The shared directory takes a few bytes more, and then none for a while."""
        ledger = self.loop.ledger
        if ledger is None or ledger.room_bytes is not None:
            return False
        ledger.room_bytes = self.random.choice([0, 100, 1000])

        def room_again() -> None:
            ledger.room_bytes = None

        self._later(0.5, 8.0, room_again)
        return True

    # ---- replicas

    def kill_actor(self) -> bool:
        """SIGKILL of a replica's actor."""
        actors = [a for found in self.loop.cluster.serve.actors.values() for a in found if a.alive]
        if actors:
            self.loop.cluster.serve.kill_actor(self.random.choice(actors))
        return bool(actors)

    def kill_engine(self) -> bool:
        """SIGKILL of the engine under a replica."""
        actors = [a for found in self.loop.cluster.serve.actors.values() for a in found]
        engines = [a.engine for a in actors if a.engine is not None and a.engine.alive]
        if engines:
            self.loop.cluster.machines.kill(self.random.choice(engines))
        return bool(engines)

    def never_start(self) -> bool:
        """For a while no replica comes up: its process hangs, its engine loads for ever, dies of it, or refuses."""
        serve = self.loop.cluster.serve
        if serve.never_up or serve.load_fails or serve.refuses or serve.load_s[0] > 40.0:
            return False
        how = self.random.choice(["process", "engine", "memory", "value"])
        serve.never_up, serve.load_fails, serve.refuses = how == "process", how == "memory", how == "value"
        serve.load_s = (60.0, 90.0) if how == "engine" else serve.load_s

        def better() -> None:
            serve.never_up = serve.load_fails = serve.refuses = False
            self._well()

        self._later(1.0, 20.0, better)
        return True

    def park_badly(self) -> bool:
        """Engines fail to park or to wake more often, or less."""
        serve, before = self.loop.cluster.serve, self.loop.cluster.serve.park_fails
        serve.park_fails = self.random.choice([0.0, 0.2, 0.5])
        return self.warm and serve.park_fails != before

    def change(self) -> bool:
        """`up` with a file that names another model."""
        loop, random = self.loop, self.random
        spec = random.choice(list(loop.specs.values()))
        spec = replace(spec, revision=f"r{random.randrange(10**6)}")
        if self.warm:
            spec = replace(spec, warm_replicas=random.choice([0, 1, 1, 2]))
        loop.specs[spec.name] = spec
        loop.tell(EndpointDeclared(spec))
        return loop.arbiter is not None

    def stranger(self) -> bool:
        """Somebody else asks Ray for a GPU."""
        self.loop.cluster.scheduler.stranger(self.random.uniform(1.0, 20.0))
        return True

    # ---- jobs

    def submit(self) -> JobName | None:
        """A job is submitted; None while nobody takes it."""
        loop, random = self.loop, self.random
        if loop.arbiter is None:
            return None
        least = random.choice([1, 1, 2])
        name = f"train{self.jobs}"
        self.jobs += 1
        spec = a_job(
            name,
            team=random.choice(["red", "blue", "blue", "green"]),
            workers_min=least,
            workers_max=random.randint(least, 4),
            in_place=random.random() < 0.8,
            workload_class=random.choice(CLASSES),
            priority=random.choice([0, 0, 1, 2]),
            min_runtime_s=random.choice([2.0, 2.0, 12.0]),
            max_preemptions_per_h=random.choice([1000, 1000, 1]),
        )
        driver = loop.submit(spec, total=random.choice([10**9, 10**9, 300]))
        if self.luck.quick:
            driver.start_s = (0.3, 2.0)
        return spec.name

    def _one_more(self) -> None:
        if len(self._drivers()) < self.luck.jobs[1]:
            self.submit()

    def more_jobs(self) -> bool:
        """Another job is submitted."""
        return len(self._drivers()) < self.luck.jobs[1] and self.submit() is not None

    def kill_rank(self) -> bool:
        """SIGKILL of a worker."""
        ranks = [rank for gang in self._gangs() for rank in gang.ranks if rank.process.alive]
        if ranks:
            self.loop.cluster.machines.kill(self.random.choice(ranks).process)
        return bool(ranks)

    def hang(self) -> bool:
        """A gang never comes to a safe point again."""
        gangs = [gang for gang in self._gangs() if not gang.hangs]
        if gangs:
            self.random.choice(gangs).hangs = True
        return bool(gangs)

    def refuse(self) -> bool:
        """Jobs that cannot park after all, and some that can again."""
        changed = False
        for driver in self._drivers():
            before, driver.refuses_to_park = driver.refuses_to_park, self.random.random() < 0.2
            changed = changed or before != driver.refuses_to_park
        return changed

    def kill_driver(self) -> bool:
        """SIGKILL of a driver; another job comes."""
        alive = self._drivers()
        if alive:
            self.random.choice(alive).kill()
            self._one_more()
        return bool(alive)

    def cancel(self) -> bool:
        """A job is cancelled; another one comes."""
        alive = self._drivers()
        if not alive or self.loop.arbiter is None:
            return False
        self.loop.cancel(self.random.choice(alive).job)
        self._one_more()
        return True

    def slow_checkpoints(self) -> bool:
        """Checkpoints take longer than any grace, for a while."""
        drivers = [driver for driver in self._drivers() if driver.commit_s[1] < 5.0]
        if not drivers:
            return False
        driver = self.random.choice(drivers)
        driver.commit_s = (4.0, 30.0)

        def quick_again() -> None:
            driver.commit_s = (0.1, 2.0)

        self._later(2.0, 30.0, quick_again)
        return True

    def no_space(self) -> bool:
        """ENOSPC where a job's checkpoints go, for a while."""
        drivers = [driver for driver in self._drivers() if not driver.no_space]
        if not drivers:
            return False
        driver = self.random.choice(drivers)
        driver.no_space = True

        def space_again() -> None:
            driver.no_space = False

        self._later(1.0, 20.0, space_again)
        return True

    def corrupt(self) -> bool:
        """A job's newest checkpoint cannot be read any more."""
        drivers = [driver for driver in self._drivers() if len(driver.published) > 1]
        return bool(drivers) and self.random.choice(drivers).corrupt()

    def poison(self) -> bool:
        """A job whose gangs die at once, or never finish a step."""
        if len(self._drivers()) >= self.luck.jobs[1]:
            return False
        name = self.submit()
        if name is None:
            return False
        driver = self.loop.drivers[name]
        driver.poison = self.random.random() < 0.7
        driver.never_steps = not driver.poison
        return True

    # ---- machines, people, traffic

    def lose_node(self) -> bool:
        """A machine dies; after a while it is back under another id."""
        loop, random = self.loop, self.random
        known = [node for node in loop.cluster.nodes if node in loop.visible]
        if not known:
            return False
        self.nodes_lost += 1
        node, name = random.choice(known), f"m{self.nodes_lost}"
        gpus = loop.lose_node(node, seen_after_s=random.uniform(0.5, 8.0))
        if loop.provider is not None and node in loop.provider.elastic:
            return True  # whether another one comes is for the pool to wish
        self.returning += 1

        def back() -> None:
            self.returning -= 1
            loop.add_node(name, gpus)

        self._later(2.0, 20.0, back)
        return True

    def never_come(self) -> bool:
        """For a while machines that are started fail to come."""
        provider = self.loop.provider
        if provider is None or provider.never_come:
            return False
        provider.never_come = True

        def better() -> None:
            provider.never_come = False

        self._later(5.0, 30.0, better)
        return True

    def drain(self) -> bool:
        """A person wants a node empty."""
        nodes = [node for node in self.loop.state.nodes if node not in self.loop.state.draining]
        if not nodes or self.loop.arbiter is None:
            return False
        self.loop.tell(NodeDraining(self.random.choice(nodes), "test"))
        return True

    def undrain(self) -> bool:
        """And not any more."""
        draining = list(self.loop.state.draining)
        for node in draining:
            self.loop.tell(NodeUndrained(node))
        return bool(draining) and self.loop.arbiter is not None

    def hold(self) -> bool:
        """A person puts a job aside."""
        jobs = [n for n, job in self.loop.state.jobs.items() if job.held is None and job.state is not JobState.ENDED]
        if not jobs or self.loop.arbiter is None:
            return False
        self.loop.tell(JobHeld(self.random.choice(jobs), "test", "r"))
        return True

    def release(self) -> bool:
        """And lets them go on."""
        held = [name for name, job in self.loop.state.jobs.items() if job.held is not None]
        for name in held:
            self.loop.tell(JobReleased(name, "test"))
        return bool(held) and self.loop.arbiter is not None

    def freeze(self) -> bool:
        """A person stops all decisions, for a while."""
        if self.loop.state.frozen or self.loop.arbiter is None:
            return False
        self.loop.tell(PoolFrozen("test"))
        self._later(1.0, 15.0, lambda: self.loop.tell(PoolUnfrozen()))
        return True

    def kill_gateway(self) -> bool:
        """A gateway dies, and what it held with it; another one takes its place."""
        loop = self.loop
        old = loop.gateways[0]
        old.alive = False
        new = type(old)(loop.cluster, loop.random, f"g{len(loop.events)}-{loop.clock.now_s:.0f}")
        new.rates, new.beat_s = dict(old.rates), old.beat_s
        loop.gateways = [new]
        return True

    def flap(self) -> bool:
        """Traffic comes and goes."""
        changed = False
        for gateway in self.loop.gateways:
            for name in self.loop.specs:
                before, gateway.rates[name] = gateway.rates.get(name, 0.0), self.random.choice(RATES)
                changed = changed or before != gateway.rates[name]
        return changed
