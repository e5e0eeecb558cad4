"""How numbers and happenings read: one wording for the live and the plain display. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

from shoal import events
from shoal.watch.board import CALM_KINDS, Board, as_number

MOST_VALUES = 3  # logged names on the progress line; all of them are in the metrics
LOUD = (events.CheckpointLost, events.CheckpointRefused)  # what people must not overlook


def number(value: float) -> str:
    """Four significant digits or so, without an exponent where people do not expect one."""
    if not math.isfinite(value):
        return str(value)
    if value == 0 or 0.001 <= abs(value) < 10_000:
        return f"{value:.4f}" if abs(value) < 100 else f"{value:.2f}"
    return f"{value:.3e}"


def rate(samples_per_second: float) -> str:
    digits = 1 if samples_per_second < 100 else 0
    return f"{samples_per_second:,.{digits}f} samples/s"


def duration(seconds: float) -> str:
    """0:07, 12:30, 3:05:00."""
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def span(seconds: float) -> str:
    """2 ms, 0.4 s, 12 s, 3:05."""
    if seconds < 0.0995:
        return f"{1000 * seconds:.0f} ms" if seconds >= 0.0005 else "under 1 ms"
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    return duration(seconds)


def amount(size: int) -> str:
    """Of bytes: 512 bytes, 412 MB, 1.5 GB."""
    if size < 1000:
        return f"{size} bytes"
    scale = next((power for power in (1, 2, 3) if size < 999.5 * 1000**power), 4)
    scaled, unit = size / 1000**scale, ("kB", "MB", "GB", "TB")[scale - 1]
    return f"{scaled:.1f} {unit}" if scaled < 9.95 else f"{scaled:.0f} {unit}"


def named_values(values: Mapping[str, float | None]) -> str:
    """'loss 0.4312, accuracy 0.9250', the loss first."""
    ordered = sorted(values.items(), key=lambda item: item[0] != "loss")
    return ", ".join(f"{name} {number(as_number(value))}" for name, value in ordered[:MOST_VALUES])


def progress_parts(board: Board) -> list[str]:
    """Step, epoch, values, speed and time left, as far as they are known."""
    total = board.loop.steps if board.loop else None
    parts = [f"step {board.done}/{total}" if total else f"step {board.done}"]
    if board.loop and board.loop.epochs > 1:
        parts.append(f"epoch {min(board.epoch + 1, board.loop.epochs)}/{board.loop.epochs}")
    if board.values:
        parts.append(named_values(board.values))
    parts.append(rate(board.samples_per_second))
    if board.seconds_left is not None:
        parts.append(f"{duration(board.seconds_left)} left")
    return parts


def notices(board: Board, event: events.Event, time: float) -> list[str]:
    """The lines that an event is worth, given the board before it. None where progress shows it or nobody needs it."""
    if isinstance(event, CALM_KINDS) and not board.is_calm(event, time):
        return []
    match event:
        case events.StepVoided():
            # Only once the job goes on is the step redone; otherwise the job's end says what happened.
            goes_on = event.generation < board.generation
            return [_void(event)] if goes_on and (event.generation, event.step) not in board.voided else []
        case events.GenerationFormed() if event.generation > 1:
            redone = [_void(void) for void in board.voided.values() if void.generation >= board.generation]
            formed = f"generation {event.generation} with {len(event.workers)} workers: {first_line(event.reason)}"
            return [*redone, formed]
        case _:
            told = _notice(board, event)
            return [] if told is None else [told]


def first_line(text: str) -> str:
    """A reason may quote a whole traceback, which is shown elsewhere."""
    return text.partition("\n")[0]


def _void(event: events.StepVoided) -> str:
    return f"step {event.step} was void and is redone: {event.operation}: {first_line(event.reason)}"


def _resumed(event: events.Resumed) -> str:
    if event.workers == 0:  # from `shoal import`
        return f"starting from {event.checkpoint}: {event.reason}"
    workers = "1 worker" if event.workers == 1 else f"{event.workers} workers"
    return f"resumed at step {event.step} from {event.checkpoint}, written by {workers}"


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
        case events.CheckpointStarted() if event.is_last:
            return f"writing the last checkpoint, at step {event.step}: {first_line(event.reason)}"
        case events.CheckpointPublished():
            mark = f", marked {event.mark}" if event.mark else ""
            cost = f"{amount(event.size)} in {span(event.seconds)}, training held up {span(event.blocked)}"
            return f"checkpoint at step {event.step}{mark}: {cost}"
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
        case events.Advised():
            return event.text if event.worker is None else f"note from worker {event.worker}: {event.text}"
        case _:
            return None
