"""What a simulation is given, traces or a recorded ledger, to what its runs need of it."""

from dataclasses import fields
from typing import Any

from ebbtide_autoscaler.core.plan.inputs import PolicyConfig
from ebbtide_simulator.recorded.replay_file import ReplayFile
from ebbtide_simulator.run.run import Scene
from ebbtide_simulator.scenes import notes as remarks
from ebbtide_simulator.scenes import scene as traced
from ebbtide_simulator.scenes.file import SimulationFile
from ebbtide_simulator.scenes.replay import Recorded, replay_policy, replay_scene
from ebbtide_simulator.scenes.replay_notes import replay_remarks
from ebbtide_simulator.scenes.scene import Inputs

File = SimulationFile | ReplayFile
Given = Inputs | Recorded


def scene(file: File, inputs: Given, seed: int) -> Scene:
    """What this seed draws.

    Raises:
        BadTrace: it cannot be, by its numbers.
    """
    if isinstance(inputs, Recorded):
        assert isinstance(file, ReplayFile)
        return replay_scene(file, inputs, seed)
    assert isinstance(file, SimulationFile)
    return traced.scene(file, inputs, seed)


def policy_config(file: File, inputs: Given) -> PolicyConfig:
    """The knobs as the pool's own arbiter would have them."""
    if isinstance(inputs, Recorded):
        assert isinstance(file, ReplayFile)
        return replay_policy(file, inputs.recording)
    assert isinstance(file, SimulationFile)
    return traced.policy_config(file)


def provenance(file: File, inputs: Given, given: Scene) -> dict[str, Any]:
    """Where it comes from, and what is left out or odd; ``given`` is the first seed's scene."""
    if isinstance(inputs, Recorded):
        assert isinstance(file, ReplayFile)
        return {
            "serving": [str(inputs)],
            "jobs": [str(inputs)],
            "remarks": replay_remarks(file, inputs, given) + _unplayed(file),
        }
    assert isinstance(file, SimulationFile)
    return {
        "serving": [str(one) for one, _ in inputs.serving],
        "jobs": [str(one) for one, _ in inputs.jobs],
        "mix": file.jobs.mix.model_dump(),
        "noise": file.run.noise,
        "requests": file.run.requests,
        "remarks": remarks.remarks(file, inputs, given) + _unplayed(file),
    }


def _unplayed(file: File) -> list[str]:
    """What the file says of the policy, as it may for a pool, that no simulation asks for."""
    played = {field.name for field in fields(PolicyConfig)}
    others = sorted(file.policy.model_fields_set - played)
    named = ", ".join(f"policy.{other}" for other in others)
    return (
        [f"{named}: of no effect in a simulation, which decides every run.tick_s and loses no report"] if others else []
    )
