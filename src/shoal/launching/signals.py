"""Signals as something to wait for: Ctrl-C, SIGTERM and a closed terminal become a readable descriptor.

Outside the main thread Python allows no handlers; there the job runs without catching signals.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Iterator

CAUGHT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """Caught signals, in order."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def fileno(self) -> int:
        return self._reader.fileno()

    def take(self) -> tuple[signal.Signals, ...]:
        """Signals since the last call."""
        try:
            data = self._reader.recv(4096)
        except BlockingIOError:
            return ()
        return tuple(signal.Signals(number) for number in data if number in CAUGHT)

    def wakeup_descriptor(self) -> int:
        return self._writer.fileno()

    def close(self) -> None:
        self._reader.close()
        self._writer.close()


@contextlib.contextmanager
def caught_signals() -> Iterator[Signals]:
    """Catch signals while the block runs, then restore the earlier handlers."""
    signals = Signals()
    if threading.current_thread() is not threading.main_thread():
        with contextlib.closing(signals):
            yield signals
        return
    wakeup = signal.set_wakeup_fd(signals.wakeup_descriptor(), warn_on_full_buffer=False)
    # The handler has nothing to do: Python itself writes the number to the descriptor.
    # An ignored signal stays ignored: `nohup shoal run` is meant to outlive its terminal. A handler that a library set
    # from C (None) could not be restored.
    wanted = [number for number in CAUGHT if signal.getsignal(number) not in (signal.SIG_IGN, None)]
    before = {number: signal.signal(number, lambda _number, _frame: None) for number in wanted}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        signals.close()
