"""A word to whoever waits: a command says what it is doing where that takes longer than a moment.

On standard error, since standard output may be data for another program. Nothing is said of what is quick.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator

FIRST_WORD = 1.5  # seconds after which the first line comes
AGAIN = 15.0  # seconds until the next one, and between any two after it


@contextlib.contextmanager
def told_if_slow(doing: str) -> Iterator[None]:
    """While the block runs: 'shoal: DOING ...', once it has taken a moment, and now and then after that."""
    is_over = threading.Event()
    thread = threading.Thread(target=_tell, args=(doing, is_over), name="slow work")
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _tell(doing: str, is_over: threading.Event) -> None:
    seconds = FIRST_WORD
    if is_over.wait(FIRST_WORD):
        return
    text = f"shoal: {doing} ..."
    while True:
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()
        if is_over.wait(AGAIN):
            return
        seconds += AGAIN
        text = f"shoal: still {doing}, after {seconds:.0f} s"
