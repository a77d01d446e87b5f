"""vLLM 0.26: the contract tests in an environment of its own; the first run installs it from the package index.

Its CPU build is made for torch 2.11, of which there is no CPU build there: the one for GPUs does without one.
"""

import pytest

from tests.serve_apps.vllm_versions.contract import contract_holds


@pytest.mark.hunt  # the short form: the contract tests with the default version, which all others run
@pytest.mark.timeout(3000)
def test_the_contract_holds_with_it() -> None:
    contract_holds("0.26.0", torch="2.11.0")
