"""For all tests: an interrupt interrupts. A process that a shell starts in the background ignores SIGINT from birth."""

import signal


def pytest_configure() -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
