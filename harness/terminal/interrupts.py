"""Ctrl-C and SIGTERM during a run: the first signal ends it where nothing is lost, the second one at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """The run was interrupted between two updates, so its state can be saved."""


class Interrupts:
    """In this context both signals raise KeyboardInterrupt. In a `held` block, the first one waits for the end of the
    block.

    Python handles signals in the main thread. In other threads this does nothing. `say` is called with one line when a
    signal waits.
    """

    def __init__(self, say: Callable[[str], None] = lambda text: None) -> None:
        self._say = say
        self._held = self._waits = self._late = False
        self._before: dict[signal.Signals, Any] = {}
        self.received = False
        """Whether a signal has come."""

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):  # nohup and background jobs ignore it
                    self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lets the first signal wait. The block checks `received` where it can end."""
        self._held = True
        try:
            yield
        finally:
            self._held = False

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Lets signals raise KeyboardInterrupt within a `held` block, while nothing changes that a checkpoint keeps.

        Raises:
            KeyboardInterrupt: A signal comes, or has been waiting.
        """
        held, self._held = self._held, False
        try:
            if held and self.received:
                raise KeyboardInterrupt
            yield
        finally:
            self._held = held

    @contextmanager
    def after(self) -> Iterator[None]:
        """Lets every signal wait for the end of the block, because torch makes another error of what a signal raises in
        it.

        Raises:
            KeyboardInterrupt: A signal came that would have been heard at once.
        """
        self._waits = True
        try:
            yield
        finally:
            self._waits = False
        if self._late:
            raise KeyboardInterrupt

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        again, self.received = self.received, True
        if self._waits:
            self._late = again or not self._held
        elif again or not self._held:
            raise KeyboardInterrupt
        end = "when this checkpoint is written" if self._waits else "at the end of this update, to save it"
        with suppress(RuntimeError):  # a line was being written when the signal came
            self._say(f"stopping {end}; a second Ctrl-C stops at once")
