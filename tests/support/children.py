"""Work in a process of its own, so that a fault of the processor is seen and does not end the tests."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable

from support.collectives import PATIENCE


def in_child(work: Callable[[], None]) -> None:
    """Run it in a process of its own: it must neither raise nor die."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def run() -> None:
        try:
            work()
            theirs.send("")
        except BaseException:
            theirs.send(traceback.format_exc())

    process = context.Process(target=run)
    process.start()
    theirs.close()
    try:
        trace = ours.recv() if ours.poll(PATIENCE) else "it did not end"
    except EOFError:
        trace = "it said nothing"
    process.join(0.0 if trace == "it did not end" else PATIENCE)
    process.kill()
    process.join()
    code = process.exitcode
    process.close()
    ours.close()
    assert (code, trace) == (0, ""), f"exit code {code}: {trace}"
