"""The lines that a running job says when something happens, the same in the live and the plain display. Pure."""

from __future__ import annotations

from shoal import events
from shoal.errors import TermsDiffer, UsageError, WorkersDisagree, by_name
from shoal.watch import server_words
from shoal.watch.board import CALM_KINDS, Board, void_of
from shoal.watch.machine_words import carrier_words, slowest_link
from shoal.watch.wording import (
    amount,
    batch_words,
    fault_words,
    first_line,
    named_values,
    rate,
    shortly,
    some_workers,
    span,
    steps_redone,
)

LOUD = (  # what people must not overlook
    events.CheckpointLost,
    events.CheckpointRefused,
    events.WorkerDied,
    events.WorkerExpelled,
    events.WorkerFailed,
    events.ReplicaDiffered,
    events.ScriptDoubtful,
    events.Waiting,
    events.StorageFailed,
    events.ConnectionIntercepted,
    events.ServerLost,
    events.ParametersGone,
)
BACK = 30.0  # seconds after a coordinator's return during which returning workers are not announced


def notices(board: Board, event: events.Event, time: float) -> list[str]:
    """The lines that an event is worth, given the board before it. None where progress shows it or nobody needs it."""
    if isinstance(event, CALM_KINDS) and not board.is_calm(event, time):
        return []
    match event:
        case events.StepVoided():
            # The step is redone only if the job goes on; otherwise the job's end says what happened. If a member was
            # lost, the lines about that loss and about how training goes on are enough.
            goes_on = event.generation < board.generation and event.generation not in board.broken_by_loss
            return [_void(event)] if goes_on and void_of(event) not in board.voided else []
        case events.GenerationFormed() if event.generation > 1:
            is_told = board.generation in board.broken_by_loss
            voided = [] if is_told else board.voided.values()
            redone = [_void(void) for void in voided if void.generation >= board.generation]
            formed = (
                f"generation {event.generation} with {some_workers(len(event.workers))}: {first_line(event.reason)}"
            )
            return [*redone, formed]
        case events.ScriptDoubtful():  # several workers may report the same
            return [] if event.text in board.doubts else [f"shoal: warning: {first_line(event.text)}"]
        case _:
            told = _notice(board, event)
            return [] if told is None else [told]


def _void(event: events.StepVoided) -> str:
    return f"step {event.step} was void and is redone: {event.operation}: {first_line(event.reason)}"


def _resumed(event: events.Resumed) -> str:
    if event.workers == 0:  # from `shoal import`
        return f"starting from {event.checkpoint}: {event.reason}"
    return f"resumed at step {event.step} from {event.checkpoint}, written by {some_workers(event.workers)}"


def _notice(board: Board, event: events.Event) -> str | None:
    match event:
        case events.EpochEnded():
            timed = event.samples if event.timed is None else event.timed
            speed = f", {rate(timed / event.seconds)}" if event.seconds > 0 and timed else ""
            return f"epoch {event.epoch + 1} ended at step {event.step}: {event.samples:,} samples{speed}"
        case events.Evaluated():
            return f"evaluated at step {event.step}: {named_values(event.scores)} ({event.samples:,} samples)"
        case events.StopRequested() if event.worker is not None:
            return f"worker {event.worker} asks to stop: {event.reason}"
        case events.StopAgreed():
            return f"stopping after step {event.step}: {event.reason}"
        case events.Advised():
            return event.text if event.worker is None else f"note from worker {event.worker}: {event.text}"
        case _:
            return _notice_of_checkpoints(board, event)


def _notice_of_checkpoints(board: Board, event: events.Event) -> str | None:
    match event:
        case events.CheckpointStarted() if event.is_last:
            return f"writing the last checkpoint, at step {event.step}: {first_line(event.reason)}"
        case events.CheckpointPublished():
            mark = f", marked {event.mark}" if event.mark else ""
            cost = f"{amount(event.size)} in {span(event.seconds)}, training held up {span(event.blocked)}"
            return f"checkpoint at step {event.step}{mark}: {cost}"
        case events.CheckpointMarked():
            return f"the checkpoint of step {event.step} is marked {event.mark}"
        case events.CheckpointDeferred():
            return f"the checkpoint due at step {event.step} is made later: {first_line(event.reason)}"
        case events.CheckpointLost():
            who = "" if event.worker is None else f"worker {event.worker}: "
            what = f"warning: the checkpoint at step {event.step} is lost: {who}{first_line(event.reason)}"
            is_last = event.checkpoint == board.last_checkpoint
            return what if is_last else f"{what}; training goes on, and the next one will be tried"
        case events.CheckpointRefused():
            where = f"{event.checkpoint}/{event.file}" if event.file else event.checkpoint
            reason = first_line(event.reason).removeprefix(f"{where} ")
            return f"warning: {where} cannot be used: {reason}; looking at the checkpoint before it"
        case events.Resumed():
            return _resumed(event)
        case _:
            return _notice_of_members(board, event)


def _ends_job(board: Board, event: events.WorkerFailed) -> bool:
    """Whether the job's end says it at once: a call that cannot work ends the job, as any failure before a step."""
    return event.worker in board.members and isinstance(by_name(event.error, ""), UsageError | WorkersDisagree)


def _notice_of_members(board: Board, event: events.Event) -> str | None:
    match event:
        case events.WorkerDied():
            return shortly(event.reason)
        case events.WorkerFailed(error=TermsDiffer.__name__):
            return f"worker {event.worker} was turned away: {shortly(event.text)}"
        case events.WorkerFailed() if board.step > board.first_step and not _ends_job(board, event):
            return f"worker {event.worker} failed in step {event.step}: {shortly(event.text)}"
        case events.WorkerExpelled():
            return f"worker {event.worker} was expelled at step {event.step}: {shortly(event.reason)}"
        case events.WorkerLeft() if event.is_handover:
            return f"worker {event.worker} hands over after step {event.step}: {first_line(event.reason)}"
        case events.WorkerReturned() if board.now - board.coordinator_back > BACK:
            return f"worker {event.worker} had lost the coordinator and is back; it was in the job all the time"
        case events.WorkerStarted():
            spare = ", a spare that was ready" if event.is_spare else ""
            return f"worker {event.worker} is started{spare}: {first_line(event.reason)}"
        case events.Waiting():
            here = f"{event.workers} of {event.needed} workers are here"
            return f"waiting, {here}: {first_line(event.reason)}"
        case events.WentBack():
            return first_line(event.reason)
        case events.BatchChosen():
            return f"{batch_words(event)}: {first_line(event.reason)}"
        case events.ProgressResumed():
            redone = steps_redone(event.redone, event.samples_redone)
            return f"training goes on at step {event.step} after {span(event.seconds)}" + (
                f"; redone: {redone}" if redone else ""
            )
        case _:
            return _notice_of_faults(event)


def _notice_of_faults(event: events.Event) -> str | None:
    match event:
        case events.ReplicaDiffered():
            whose = "workers" if event.worker is None else f"worker {event.worker}"
            return f"warning: the parameters of {whose} differed at step {event.step}: {first_line(event.reason)}"
        case events.CoordinatorReturned():
            return f"the coordinator is back, in generation {event.generation}: {first_line(event.reason)}"
        case events.StorageFailed() | events.ConnectionIntercepted():
            return f"warning: {first_line(event.reason)}"
        case events.StorageRestored():
            return first_line(event.reason)
        case events.CarrierChosen() if event.generation == 1 and not event.is_asked:
            return f"{carrier_words(event)}: {first_line(event.reason)}"
        case events.LinksMeasured() if event.generation == 1:
            return slowest_link(event)
        case events.FaultInjected():
            return f"fault on purpose: {fault_words(event)} ({first_line(event.reason)})"
        case _:
            return server_words.notice(event)
