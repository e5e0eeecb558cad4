"""Signals that ask a script which runs alone to stop: the first one after its step, a second one at once.

Only where the script is recorded: without a checkpoint to make, Ctrl-C and SIGTERM do what Python does. Handlers of the
script's own are left alone, and so is an ignored signal. Outside the main thread Python allows no handlers.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

from shoal.errors import Interrupted
from shoal.membership.texts import STOP_WORDS, STOPPING_AFTER_STEP

HEEDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
USUAL = (signal.SIG_DFL, signal.default_int_handler)


class StopSignals:
    def __init__(self) -> None:
        self._before: dict[signal.Signals, object] = {}
        self._process = os.getpid()
        self._stop: Callable[[str], None] | None = None
        self.first: signal.Signals | None = None  # that has come

    def heed(self, stop: Callable[[str], None]) -> None:
        """`stop` is called with the reason, in a signal handler, for the first signal."""
        if threading.current_thread() is not threading.main_thread():
            return
        self._stop = stop
        for number in HEEDED:
            if (handler := signal.getsignal(number)) in USUAL:
                self._before[number] = handler
                signal.signal(number, self._came)

    def forget(self) -> None:
        """Put the handlers back, where the script has not put its own there meanwhile."""
        if threading.current_thread() is threading.main_thread():
            for number, handler in self._before.items():
                if signal.getsignal(number) == self._came:
                    signal.signal(number, handler)  # type: ignore[arg-type]  # what `getsignal` gave
        self._before.clear()

    @property
    def reason(self) -> str:
        return "" if self.first is None else STOP_WORDS[self.first]

    @property
    def exit_code(self) -> int:
        return Interrupted.exit_code if self.first in (None, signal.SIGINT) else 128 + self.first

    def _came(self, number: int, frame: FrameType | None) -> None:
        came = signal.Signals(number)
        if os.getpid() != self._process or self.first is not None or self._stop is None:
            # A child that the script forked, or a second signal.
            if came == signal.SIGINT:
                signal.default_int_handler(number, frame)
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self.first = came
        with contextlib.suppress(OSError):  # not `print`: what was interrupted may be printing
            os.write(2, f"shoal: {STOPPING_AFTER_STEP}\n".encode())
        self._stop(STOP_WORDS[came])
