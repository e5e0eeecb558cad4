"""How numbers and happenings read: one wording for the live and the plain display. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

from shoal import events
from shoal.watch.board import Board, as_number

MOST_VALUES = 3  # logged names on the progress line; all of them are in the events


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


def notices(board: Board, event: events.Event) -> list[str]:
    """The lines that an event is worth, given the board before it. None where progress shows it or nobody needs it."""
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
            told = _notice(event)
            return [] if told is None else [told]


def first_line(text: str) -> str:
    """A reason may quote a whole traceback, which is shown elsewhere."""
    return text.partition("\n")[0]


def _void(event: events.StepVoided) -> str:
    return f"step {event.step} was void and is redone: {event.operation}: {first_line(event.reason)}"


def _notice(event: events.Event) -> str | None:
    match event:
        case events.EpochEnded():
            speed = rate(event.samples / event.seconds) if event.seconds > 0 else "0 samples/s"
            return f"epoch {event.epoch + 1} ended at step {event.step}: {event.samples:,} samples, {speed}"
        case events.Evaluated():
            return f"evaluated at step {event.step}: {named_values(event.scores)} ({event.samples:,} samples)"
        case events.StopRequested() if event.worker is not None:
            return f"worker {event.worker} asks to stop: {event.reason}"
        case events.StopAgreed():
            return f"stopping after step {event.step}: {event.reason}"
        case events.Advised():
            return event.text if event.worker is None else f"note from worker {event.worker}: {event.text}"
        case _:
            return None
