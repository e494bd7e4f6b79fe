import os
import signal
import threading

import pytest

from trimaran.base.interrupt import interrupt_deferred


def press():
    os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_waits_for_the_end_of_the_block():
    done = []

    def block():
        with interrupt_deferred():
            press()
            done.append(True)

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_it_goes_to_the_handler_that_was_there():
    seen = []
    before = signal.signal(signal.SIGINT, lambda number, _: seen.append(number))
    try:
        with interrupt_deferred():
            press()
            press()
            assert seen == []
        assert seen == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_error_of_the_block_is_not_hidden():
    with pytest.raises(ValueError, match="mine"), interrupt_deferred():
        raise ValueError("mine")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_threads_are_left_alone():
    def body():
        with interrupt_deferred():
            handlers.append(signal.getsignal(signal.SIGINT))

    handlers = []
    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert handlers == [signal.default_int_handler]
