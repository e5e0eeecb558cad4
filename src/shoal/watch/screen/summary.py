"""The summary of a job that is over: outcome, last scores, speed, and where each worker's time went. Pure."""

from __future__ import annotations

from shoal.values import TimeShares
from shoal.watch.board import Board
from shoal.watch.wording import duration, named_values, rate

COLUMNS = ("worker", "samples", "compute", "communication", "waiting", "input", "checkpoint", "other")


def has_something(board: Board) -> bool:
    """Whether there is anything to sum up: a plain torch script reports nothing."""
    return board.step > 0 or board.evaluated is not None


def headline(board: Board) -> str:
    """One line: 'finished: 90 steps in 0:12, accuracy 0.9472, 6,120 samples/s'."""
    ended = board.ended
    outcome = ended.outcome if ended else "ended"
    reason = f" ({ended.reason})" if ended and outcome != "finished" and ended.reason else ""
    steps = "1 step" if board.step == 1 else f"{board.step:,} steps"
    if board.resumed is not None:
        steps += f" ({board.step - board.first_step:,} since it was resumed)"
    parts = [steps + (f" in {duration(ended.seconds)}" if ended else "")]
    if board.evaluated is not None:
        parts.append(named_values(board.evaluated.scores))
    elif board.values:
        parts.append(named_values(board.values))
    parts.append(rate(board.mean_samples_per_second))
    if void := board.redone - board.taken_back:
        parts.append("1 void step was redone" if void == 1 else f"{void:,} void steps were redone")
    if board.taken_back:
        steps = "1 applied step was" if board.taken_back == 1 else f"{board.taken_back:,} applied steps were"
        parts.append(f"{steps} taken back and redone")
    if board.lost:
        count = len(board.lost)
        parts.append("1 checkpoint was lost" if count == 1 else f"{count} checkpoints were lost")
    return f"{outcome}{reason}: {', '.join(parts)}"


def rows(board: Board) -> list[tuple[str, ...]]:
    """A row per worker under `COLUMNS`: its number, its samples, and its time in loops in per cent."""
    return [
        (str(worker), f"{state.samples:,}", *_percent(state.shares)) for worker, state in sorted(board.workers.items())
    ]


def _percent(shares: TimeShares) -> tuple[str, ...]:
    total = shares.total
    parts = (shares.compute, shares.communication, shares.waiting, shares.input, shares.checkpoint, shares.other)
    return tuple(f"{100 * part / total:.1f}%" if total > 0 else "-" for part in parts)


def summary_lines(board: Board) -> list[str]:
    """The summary as plain text."""
    table = [COLUMNS, *rows(board)]
    widths = [max(len(row[column]) for row in table) for column in range(len(COLUMNS))]
    drawn = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in table]
    return [headline(board), *(drawn if board.workers else [])]
