"""The train function that Ray Train knows: it only opens the door to ``training_rank``.

Separate, because the driver and the controller must have it to pass it on, and ``training_rank`` imports torch: several
seconds that only the workers need to spend.
"""

import importlib
from typing import Any


def enter(config: dict[str, Any]) -> Any:
    """Run one rank of the job in this process; gives what its train function returned, or a ``Left``."""
    if config["plan"].session is not None:  # it needs no torch, and is told so late for the same reason
        return importlib.import_module("ebbtide_train.worker.interactive_rank").run_rank(config["plan"])
    return importlib.import_module("ebbtide_train.worker.training_rank").run_rank(config["plan"], config["args"])
