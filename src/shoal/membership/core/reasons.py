"""The texts that membership decisions carry. Log, error, event and test show these same words.

Pure functions from facts to one line each. Not here: when something is decided (`core`).
"""

from __future__ import annotations

import signal
from collections.abc import Sequence

from shoal.errors import ShoalError, UsageError, WorkersDisagree
from shoal.events import Event
from shoal.terms import call_in, call_missed
from shoal.values import Address
from shoal.wire.messages import PROTOCOL_VERSION, ExchangeBroken, Failed, Message

MAX_TEXT = 64 * 1024  # characters of a text from outside that are kept: many times any readable traceback
STILL_PUBLISHING = "a checkpoint is being published: whoever starts from the newest one must find it"


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


def how_it_exited(code: int, loss: str = "") -> str:
    """What an exit status says about a process that should not have ended. `loss`: what took it along, if known."""
    if code < 0 and loss:
        return f"was lost: {loss}"
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


IF_BUSY = "; if it was only busy, raise --heartbeat-limit"
IF_HUNG = "; if it was only busy, raise --hang-limit"
MAY_COME_BACK = "; it may come back"
NOT_BACK = "did not come back to the new coordinator"
CLOSED = "closed its connection without leaving"


def cut_off(why: str) -> str:
    return f"was cut off ({why})"


def silent(seconds: float) -> str:
    return f"was silent for {seconds:.1f} s"


def away(worker: int) -> str:
    return f"worker {worker} was away when the next generation formed"


# The end of the job

NOBODY_LEFT = "no worker is left, and nobody is there to start new ones"


def futile_loss(loss: str) -> str:
    return f"{loss}; no generation gets beyond that step"


def futile(reason: str) -> str:
    return f"{reason}, but no generation gets beyond that step; check the network between the workers"


# Who is turned away


def no_greeting(message: str) -> str:
    return f"its first message was {message}, not join or watch"


def no_such_number(worker: int, highest: int) -> str:
    return f"worker number {worker} is not one of this job's, which go from 0 to {highest}"


def process_ended(worker: int) -> str:
    return f"the process of worker {worker} has already ended"


def number_in_use(worker: int, process: int, host: str) -> str:
    return f"worker number {worker} is in use by process {process} on {host}"


def has_left(worker: int) -> str:
    return f"worker {worker} has left the job"


def no_address(worker: int, address: Address) -> str:
    return f"worker {worker} says that its peers reach it at {address}, which is no address"


def wrong_version(version: int) -> str:
    return (
        f"it speaks protocol version {version} and the coordinator {PROTOCOL_VERSION}; "
        "install the same version of shoal everywhere"
    )


def other_version(name: str, job: tuple[int, str], own: tuple[int, str]) -> str:
    """`job` and `own`: number and version of a worker in the job, and of the newcomer."""
    return (
        f"the version of {name} is {job[1]} in the job (on worker {job[0]}) and {own[1]} on worker {own[0]}; "
        f"install the same version of {name} everywhere"
    )


def broken_exchange(reports: Sequence[tuple[int, ExchangeBroken]], *, members: Sequence[int]) -> str:
    """Why the members form the next generation although nobody died.

    Prefer the first report that names unreachable workers, then the first that names a peer.

    `reports` are pairs of the reporting worker's number and its report; `members` are the workers that have not left.
    """
    worker, report = max(reports, key=lambda pair: (bool(pair[1].unreached.unreachable), pair[1].peer is not None))
    if report.must_restore:
        return f"worker {worker} found in step {report.step}: {shortened(report.reason)}"
    whom = "its peers" if report.peer is None else f"worker {report.peer}"
    if report.unreached.unreachable:
        whom = _named(report.unreached.unreachable)
    return (
        f"worker {worker} could not reach {whom} in step {report.step}, during {report.operation} "
        f"({shortened(report.reason)}); {all_of(len(members), 'member is', 'members are')} alive"
    )


def unanswered(worker: int, peer: int) -> str:
    return f"worker {worker} got no answer from worker {peer}"


def joined(count: int, workers: int) -> str:
    if count == workers:
        return f"{all_of(workers, 'worker', 'workers')} joined"
    return f"{count} of {workers} workers joined, and no more came for a while"


def _named(workers: Sequence[int]) -> str:
    """Up to three workers by number, more by their count."""
    if len(workers) > 3:
        return f"{len(workers)} workers"
    text = " and ".join(map(str, workers)) if len(workers) < 3 else f"{workers[0]}, {workers[1]} and {workers[2]}"
    return f"worker{'s' if len(workers) > 1 else ''} {text}"


def wants_in(workers: Sequence[int]) -> str:
    return f"{_named(workers)} wait{'s' if len(workers) == 1 else ''} to be let in"


def held(ready: Sequence[int], coming: Sequence[int], seconds: float) -> str:
    who = f"{_named(ready)} {'waits' if len(ready) == 1 else 'wait'} for {_named(coming)}"
    return f"{who}, up to {seconds:.1f} s, so that the members regroup once for all newcomers"


def not_awaited(workers: Sequence[int], seconds: float) -> str:
    return f"; {_named(workers)} did not get ready within {seconds:.1f} s" if workers else ""


def let_in(workers: Sequence[int]) -> str:
    return f"{_named(workers)} {'is' if len(workers) == 1 else 'are'} let in" if workers else ""


def left_out_of(workers: Sequence[int]) -> str:
    return (
        f"{_named(workers)} cannot reach all others and {'is' if len(workers) == 1 else 'are'} left out"
        if workers
        else ""
    )


def too_late(workers: Sequence[int]) -> str:
    return (
        f"{_named(workers)} did not come in time and {'is' if len(workers) == 1 else 'are'} left out" if workers else ""
    )


def from_checkpoint(*, all_new: bool) -> str:
    who = "no member of the last generation is left" if all_new else "no member has a state to go on with"
    return f"{who}: all start from the newest checkpoint"


def too_few(count: int, needed: int, why: str) -> str:
    return f"waiting for workers: {count} are here, {needed} are needed" + (f" ({why})" if why else "")


def may_live(worker: int, seconds: float) -> str:
    return (
        f"worker {worker} of the last generation may still be at work; "
        f"others may start from the newest checkpoint {seconds:g} s after it was last heard from"
    )


def may_hold_state(workers: Sequence[int]) -> str:
    return f"{_named(workers)} may hold the job's state and {'has' if len(workers) == 1 else 'have'} not said so yet"


def none_heard(seconds: float) -> str:
    return f"no member of the generation was heard from for {seconds:.1f} s"


def handed_over(worker: int, reason: str) -> str:
    return f"worker {worker} handed its place over ({shortened(reason)})"


def lost_behind_the_loop(loss: str, times: int) -> str:
    return (
        f"{loss}; the code behind the last loop was begun {times} times and never run to its end by all workers, so "
        "its work may be unfinished; once the cause is mended, go on with --resume"
    )


def lost_at_the_end(name: str, how: str = "was no longer heard from") -> str:
    return (
        f"{name} {how} after the training was over and before its script had come to its last line; the code behind "
        "shoal.main may not have run: --resume runs the code behind the last loop again"
    )


def script_failed(worker: int, step: int) -> str:
    return f"the script failed on worker {worker} in step {step}"


def lost_its_servers(worker: int) -> str:
    return f"worker {worker} cannot reach the parameter servers any more"


def hung(worker: int, step: int, operation: str, seconds: float) -> str:
    return (
        f"worker {worker} did not move for {seconds:.1f} s in step {step}, during {operation}, "
        "while others waited for it"
    )


def unreachable(worker: int, others: Sequence[int]) -> str:
    return f"worker {worker} and {_named(others)} cannot reach each other"


def barred(seconds: float) -> str:
    return f"; it may come back in {seconds:g} s"


def late(worker: int) -> str:
    return f"worker {worker} did not come to the other members in time, though its machine answers them"


def finished_before(gone: int, worker: int, report: ExchangeBroken) -> ShoalError:
    if call := call_in(report.operation):
        return UsageError(call_missed(call, by=worker, missed=gone, instead="had finished its script"))
    return WorkersDisagree(
        f"worker {gone} had finished its script when worker {worker} was in {report.operation}, in step {report.step}; "
        "call run's methods on every worker, not inside `if run.is_first`, and let all leave a loop in the same step"
    )


def left_out(number: int, other: int) -> str:
    return (
        f"worker {number} ended with exit code 0 without joining the job that worker {other} joined; "
        "every worker's script must call shoal.main, or none"
    )


def failure(worker: int, failed: Failed, *, of_script: bool) -> str:
    """What the user reads when a worker says that it cannot go on. For a script, `failed.text` is its traceback."""
    if of_script:
        return f"the script failed on worker {worker} in step {failed.step}:\n{shortened(failed.text)}"
    text = shortened(failed.text)
    says_whose = text.startswith("worker ")  # where the text is about several workers, for example
    return text if says_whose else f"worker {worker}: {text}"
