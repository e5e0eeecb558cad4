"""The texts that membership decisions carry. Log, error, event and test show these same words.

Pure functions from facts to one line each. Not here: when something is decided (`core`).
"""

from __future__ import annotations

import signal
from collections.abc import Sequence

from shoal.events import Event
from shoal.wire.messages import PROTOCOL_VERSION, ExchangeBroken, Failed, Message

MAX_TEXT = 64 * 1024  # characters of a text from outside that are kept: many times any readable traceback


def shortened(text: str) -> str:
    """A text from outside, cut in the middle where it is too long to send on: both ends of a traceback matter."""
    if len(text) <= MAX_TEXT:
        return text
    half = MAX_TEXT // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"


def name_of(value: Message | Event) -> str:
    """The name that a message or an event has on the wire."""
    return str(type(value).__struct_config__.tag)


def all_of(number: int, one: str, many: str) -> str:
    return f"the only {one}" if number == 1 else f"all {number} {many}"


def how_it_exited(code: int) -> str:
    """What an exit status says about a process that should not have ended."""
    if code == 0:
        return "ended without finishing its loop (exit code 0)"
    if code > 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed by {name}"


def hint_for(code: int | None) -> str:
    if code == -signal.SIGKILL:
        return "; if nobody did that on purpose, look for the out-of-memory killer in the system log"
    return ""


def wrong_version(version: int) -> str:
    return (
        f"it speaks protocol version {version} and the coordinator {PROTOCOL_VERSION}; "
        "install the same version of shoal everywhere"
    )


def broken_exchange(reports: Sequence[tuple[int, ExchangeBroken]], *, members: Sequence[int]) -> str:
    """Why the members form the next generation although nobody died. The first report that names a peer speaks.

    `reports` are pairs of the reporting worker's number and its report; `members` have not left.
    """
    worker, report = next((pair for pair in reports if pair[1].peer is not None), reports[0])
    whom = "its peers" if report.peer is None else f"worker {report.peer}"
    return (
        f"worker {worker} could not reach {whom} in step {report.step}, during {report.operation} "
        f"({shortened(report.reason)}); {all_of(len(members), 'member is', 'members are')} alive"
    )


def finished_before(gone: int, worker: int, report: ExchangeBroken) -> str:
    return (
        f"worker {gone} had finished its script when worker {worker} was in {report.operation}, in step {report.step}; "
        "call run's methods on every worker, not inside `if run.is_first`, and let all leave a loop in the same step"
    )


def left_out(number: int, other: int) -> str:
    return (
        f"worker {number} ended with exit code 0 without joining the job that worker {other} joined; "
        "every worker's script must call shoal.main, or none"
    )


def failure(worker: int, failed: Failed, *, of_script: bool) -> str:
    """What the user reads when a worker says that it cannot go on. Of a script, the text is its traceback."""
    if of_script:
        return f"the script failed on worker {worker} in step {failed.step}:\n{shortened(failed.text)}"
    return f"worker {worker}: {shortened(failed.text)}"
