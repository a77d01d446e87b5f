"""What a session raises.

::

    Leaving                 not a failure: the gang leaves its slots with everything committed; let it pass
    ├── Preempted           the job goes on later, at the very step after the last one
    └── Cancelled           the job is over
    SessionError
    ├── SessionMisuse       the author's loop breaks a rule of the session; the message says which and how to mend it
    ├── CheckpointMismatch  the committed checkpoint does not fit this model, optimizer or data; nothing was loaded
    ├── CheckpointFailed    a checkpoint could not be committed; the last committed one still counts
    │   └── CommitHopeless  and no later attempt can succeed: a later gang has begun, or the state cannot be stored
    ├── ParkedStateUnusable what a gang has left in host memory is no whole state: it is not used
    └── GangBroken          the ranks do not agree on where they are, or nothing they do can be committed any more:
                            stop, restart from the last commit
"""


class Leaving(Exception):
    """The gang leaves by order, with its checkpoint committed. Not a failure; never swallow it."""


class Preempted(Leaving):
    """The job will go on later from the commit just made."""


class Cancelled(Leaving):
    """The job was cancelled; its last state is committed."""


class SessionError(Exception):
    """Base of the session's failures."""


class SessionMisuse(SessionError):
    """The train function uses the session wrongly."""


class CheckpointMismatch(SessionError):
    """A checkpoint does not fit what it is loaded into."""


BEGIN_ANEW = (
    "`ebbtide submit FILE --fresh`, or PoolTrainer(fresh=True), begins at step 0 and keeps aside what is there; "
    "another name for the job leaves it where it is"
)
"""What an author can do who has changed what the checkpoints of a job were made with."""


class CheckpointFailed(SessionError):
    """A checkpoint that had to be committed could not be."""


class CommitHopeless(CheckpointFailed):
    """It could not be, and no later attempt of this gang can succeed."""


class GangBroken(SessionError):
    """Ranks of one gang stand at different places, or what they do can never be committed."""


class ParkedStateUnusable(SessionError):
    """What lies in host memory cannot be gone on from; the last checkpoint still counts."""
