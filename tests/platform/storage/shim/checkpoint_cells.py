"""The columns of the store's fault matrix that are about checkpoints; apart, since torch takes long to load."""

from functools import partial

from tests.platform.storage.shim.checkpoint_trials import TRIALS
from tests.platform.storage.shim.faults import serve
from tests.platform.storage.shim.tried import tried

if __name__ == "__main__":
    serve({name: partial(tried, kind) for name, kind in TRIALS.items()})
