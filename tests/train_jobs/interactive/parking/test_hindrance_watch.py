"""What is in the way of a park is asked for when a session runs, then now and then, and never of the life before."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ebbtide_train.interactive.parking.hindrance_watch import HindranceWatch
from ebbtide_train.interactive.ports import InTheWay
from tests.train_jobs.interactive.kept import until


class Asked:
    """Answers with how often it was asked; with ``held`` an answer comes when it is let."""

    def __init__(self, *, held: bool = False) -> None:
        self.times, self._held = 0, held
        self.let = threading.Semaphore(0)

    def __call__(self) -> InTheWay:
        self.times += 1
        number = self.times
        assert not self._held or self.let.acquire(timeout=30.0)
        return InTheWay(park=str(number))


@contextmanager
def watching(asked: Asked, every_s: float) -> Iterator[HindranceWatch]:
    watch = HindranceWatch(asked, every_s=every_s)
    try:
        yield watch
    finally:
        watch.close()
        asked.let.release(9)


def test_it_is_asked_at_once_and_again_and_again_while_it_runs() -> None:
    asked = Asked()
    with watching(asked, every_s=0.01) as watch:
        assert watch.found is None and asked.times == 0
        watch.begin()
        until(lambda: watch.found is not None and int(watch.found.park) > 2)
        watch.pause()
        assert watch.found is None


def test_an_answer_about_the_life_before_does_not_count() -> None:
    asked = Asked(held=True)
    with watching(asked, every_s=60.0) as watch:
        watch.begin()
        until(lambda: asked.times == 1)
        watch.pause()
        watch.begin()
        asked.let.release()
        until(lambda: asked.times == 2)  # asked anew at once, and the first answer was taken in
        assert watch.found is None
        asked.let.release()
        until(lambda: watch.found is not None)
        assert watch.found == InTheWay(park="2")


def test_one_that_does_not_run_is_not_asked_about_and_the_thread_ends() -> None:
    asked = Asked()
    with watching(asked, every_s=0.01) as watch:
        watch.begin()
        until(lambda: asked.times > 0)
        watch.pause()
        until(lambda: watch.found is None)
        watch.close()
        watch._thread.join(10.0)
        assert not watch._thread.is_alive()
    never = HindranceWatch(asked)
    never.close()
    assert not never._thread.is_alive()
