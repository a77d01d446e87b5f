"""vLLM 0.32: the contract tests in an environment of its own; the first run installs it from the package index."""

import pytest

from tests.serve_apps.vllm_versions.contract import contract_holds


@pytest.mark.hunt  # the short form: the contract tests with the default version, which all others run
@pytest.mark.timeout(3000)
def test_the_contract_holds_with_it() -> None:
    contract_holds("0.32.0", torch="2.13.0+cpu")
