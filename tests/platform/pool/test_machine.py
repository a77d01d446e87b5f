"""Random legal and illegal events against the promises and against an independent model of who may touch a GPU.

The model knows no transition table. It only believes what a careful operator would: a grant hands slots over, and a
slot is empty again when somebody proved it so or its node died.
"""

from hypothesis import settings

from tests.builders.pool_events import Pool
from tests.examples import examples

TestPool = Pool.TestCase
TestPool.settings = settings(
    max_examples=examples(60), stateful_step_count=60, deadline=None, database=None, derandomize=True
)
