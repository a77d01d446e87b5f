"""What can go wrong in the serving room, split by what the catcher does.

::

    ServeRoomError
    ├── NotGranted      the arbiter gave no lease, or one for other slots: touch no GPU, leave; Serve starts anew
    ├── EngineFailed    the engine did not start or is dead: the replica is unhealthy, Serve replaces it
    │   └── EngineRefused   it does not take what it was told: another start ends alike, and is no use on another slot
    └── SeatRefused     Serve refused what the actuator asked for: shown to the operator, tried again next tick

A request that fails is no exception but a reply: see ``engine.JsonReply``.
"""


class ServeRoomError(Exception):
    """Base of this package's errors."""


class NotGranted(ServeRoomError):
    """This process holds no lease for the GPUs it was started on; it has touched none."""


class EngineFailed(ServeRoomError):
    """The engine cannot answer any more; nothing it held can be trusted."""


class EngineRefused(EngineFailed):
    """The engine did not start, for its arguments or its model's configuration: the same on every slot."""


class SeatRefused(ServeRoomError):
    """Ray Serve did not accept a seat; nothing was started."""
