"""Ctrl-C and SIGTERM."""

import os
import signal
import threading

import pytest

from phmctl.training.signals import StopRequest


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGUSR1, 138)]
)
def test_the_first_signal_asks(number: signal.Signals, code: int) -> None:
    with StopRequest() as stop:
        assert stop.exit_code is None
        os.kill(os.getpid(), number)
        assert stop.received is number
        assert stop.exit_code == code


def test_the_second_signal_insists() -> None:
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(SystemExit) as exit_info:
            os.kill(os.getpid(), signal.SIGINT)
    assert exit_info.value.code == 130
    assert stop.received is signal.SIGTERM


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with StopRequest():
        assert signal.getsignal(signal.SIGINT) is not before[0]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with StopRequest() as stop:
            os.kill(os.getpid(), signal.SIGINT)
            assert stop.received is None
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_watches_nothing() -> None:
    seen: list[object] = []

    def work() -> None:
        with StopRequest() as stop:
            seen.append(stop.received)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [None]
