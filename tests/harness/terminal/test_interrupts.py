import signal

import pytest

from harness.terminal.interrupts import Interrupts

pytestmark = pytest.mark.usefixtures("signals_are_heard")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_waits_in_a_held_block_and_the_second_does_not(number):
    said = []
    with Interrupts(said.append) as interrupts, interrupts.held():
        signal.raise_signal(number)
        assert interrupts.received
        assert len(said) == 1
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)


def test_a_signal_is_heard_at_once_where_nothing_is_held():
    with Interrupts() as interrupts, pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)
    with Interrupts() as interrupts, interrupts.held():
        with pytest.raises(KeyboardInterrupt), interrupts.at_once():
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):  # it has been heard: the next one is the second
            signal.raise_signal(signal.SIGINT)
    with Interrupts() as interrupts, interrupts.held():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt), interrupts.at_once():
            pytest.fail("the signal waited already")


def test_a_process_that_ignores_ctrl_c_goes_on_ignoring_it():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Interrupts() as interrupts:
        signal.raise_signal(signal.SIGINT)
    assert not interrupts.received
    signal.signal(signal.SIGINT, signal.default_int_handler)
