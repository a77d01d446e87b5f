"""The columns of the store's fault matrix that are about models and refs, run by ``test_store_fault_matrix.py``."""

from functools import partial

from tests.platform.storage.shim.faults import serve
from tests.platform.storage.shim.store_trials import TRIALS, hurry
from tests.platform.storage.shim.tried import tried

if __name__ == "__main__":
    hurry()
    serve({name: partial(tried, kind) for name, kind in TRIALS.items()})
