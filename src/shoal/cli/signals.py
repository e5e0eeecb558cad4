"""Signals as something to wait for: Ctrl-C, SIGTERM and a closed terminal become a readable descriptor.

Outside the main thread Python allows no handlers; then none are caught and the job runs without. For workers, SIGTERM
becomes a wish to leave.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Protocol

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
        """Those since the last call."""
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


class Leaving(Protocol):
    """What a worker's signal handler talks to."""

    worker: int

    @property
    def is_over(self) -> bool: ...

    def ask_to_leave(self, reason: str) -> None: ...


def heed_sigterm(peers: Leaving) -> None:
    """A worker's first SIGTERM makes it hand over at a step's end; a second one, or one after the job's end, kills it.

    Clouds send it to a machine that they take away. Batch systems send it to every process of a job: then the launcher
    has asked for a stop, which goes before. Handlers of the script's own are left alone.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return
    process = os.getpid()

    def asked(number: int, _frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if os.getpid() != process or peers.is_over:  # a child that the script forked, or nobody to hand over to
            os.kill(os.getpid(), number)
        peers.ask_to_leave(f"worker {peers.worker} got SIGTERM")

    signal.signal(signal.SIGTERM, asked)


@contextlib.contextmanager
def caught_signals() -> Iterator[Signals]:
    """While the block runs; what was there before is put back."""
    signals = Signals()
    if threading.current_thread() is not threading.main_thread():
        with contextlib.closing(signals):
            yield signals
        return
    wakeup = signal.set_wakeup_fd(signals.wakeup_descriptor(), warn_on_full_buffer=False)
    # The handler has nothing to do: Python itself writes the number to the descriptor.
    # One that is ignored stays so: `nohup shoal run` is meant to outlive its terminal.
    wanted = [number for number in CAUGHT if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, lambda _number, _frame: None) for number in wanted}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        signals.close()
