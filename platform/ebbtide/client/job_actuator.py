"""What the arbiter asks of training when a job's driver is lost, and the narrow port between the two.

The arbiter loads the actuator by entry point (``ebbtide.actuators``, name ``train``) and makes it with the pool's
shared directory: ``TrainActuator(shared_dir)``. So neither room imports the other.
"""

from typing import Protocol

from ebbtide.pool.ids import JobName


class CannotRestore(RuntimeError):
    """The job was not submitted again; the message says why, and whether asking again can help."""


class JobActuator(Protocol):
    """Submitting lost jobs again. Every method may be repeated, and may raise: then ask again later."""

    async def restorable(self) -> frozenset[JobName]:
        """Jobs of which enough is on the shared directory that they can be submitted again.

        Raises:
            OSError: the shared directory does not answer; whatever was known before still holds.
        """

    async def restore(self, job: JobName) -> str:
        """Submit the job again, once: asking again while that submission lives gives the same id.

        Returns Ray's submission id.

        Raises:
            CannotRestore: nothing was submitted.
        """

    async def forget(self, job: JobName) -> None:
        """Remove what was kept of the job: it has ended for good."""
