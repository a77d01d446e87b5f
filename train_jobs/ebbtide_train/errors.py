"""What running a job on the pool raises; what the train function sees is in ``session.errors``.

::

    PoolProblem             the job never started; nothing has changed
    ├── NoArbiter           there is no pool at the other end: start one, or say which
    ├── JobRefused          the pool will not take this job; the message has its reason
    └── BadJob              the job's own settings contradict each other
    JobLost                 the Train controller died under the job; its last commit counts
"""


class PoolProblem(Exception):
    """The job could not be handed to a pool."""


class NoArbiter(PoolProblem):
    """No arbiter answers."""


class JobRefused(PoolProblem):
    """The arbiter said no."""


class BadJob(PoolProblem):
    """The job's settings are wrong."""


class JobLost(Exception):
    """The job ended without anybody having decided so."""
