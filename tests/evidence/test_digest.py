"""A digest of code: comments, docstrings and layout do not change it, anything else does."""

import subprocess
import sys

import pytest

from evidence.digest import plain

SOURCE = '''
"""Of a module."""

def f(a, b):
    """Of a function."""
    # why
    return a + b


class C:
    """Only this."""
'''

SAME = {
    "comments": SOURCE.replace("# why", "# because  # guard: something holds"),
    "docstrings": SOURCE.replace("Of a function.", "It adds."),
    "no docstring": SOURCE.replace('    """Of a function."""\n', ""),
    "lines": SOURCE.replace("return a + b", "return (\n        a\n        + b\n    )"),
    "quotes": SOURCE.replace('"""Only this."""', "'''Only that.'''"),
}

OTHER = {
    "an operator": SOURCE.replace("a + b", "a - b"),
    "a name": SOURCE.replace("def f", "def g"),
    "a default": SOURCE.replace("a, b)", "a, b=1)"),
    "a string that is no docstring": SOURCE.replace("return a + b", 'return "a + b"'),
    "a statement": SOURCE.replace("    return", "    a = b\n    return"),
}


@pytest.mark.parametrize("source", SAME.values(), ids=SAME)
def test_what_does_not_change_what_code_does_is_left_out(source: str) -> None:
    assert plain(source) == plain(SOURCE)


@pytest.mark.parametrize("source", OTHER.values(), ids=OTHER)
def test_everything_else_counts(source: str) -> None:
    assert plain(source) != plain(SOURCE)


def test_a_function_with_a_docstring_alone_stays_one() -> None:
    assert plain('def f():\n    """One."""') == plain("def f():\n    pass")


def test_no_module_is_loaded_for_its_digest() -> None:
    """Guards are taken out in forks of a process that has made digests: what it had loaded would stay as it is."""
    code = "import sys\nfrom evidence.digest import digest_of\ndigest_of(['gateway', 'simulated arbiter'])\n"
    code += "print(*(name for name in sys.modules if name.startswith('ebbtide')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
