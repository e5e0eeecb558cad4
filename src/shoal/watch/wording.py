"""How numbers, progress and parts of sentences read: one wording for displays, `shoal show` and the report. Pure.

Not here: the lines that a running job says (`notices`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

from shoal import events
from shoal.watch.board import Board, as_number

LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python", "<frozen ", "/shoal/training/", "/shoal/strategies/")
MOST_VALUES = 3  # logged names on the progress line; all of them are in the metrics


def number(value: float) -> str:
    """A number with about four significant digits, and without an exponent where people do not expect one."""
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
    if not math.isfinite(seconds):
        return "?"
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
    """A number of bytes: 512 bytes, 412 MB, 1.5 GB."""
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
    if board.waiting is not None:
        return [*parts, f"waiting: {board.waiting.workers} of {board.waiting.needed} workers are here"]
    parts.append(rate(board.samples_per_second))
    if len(board.machines) > 1:
        parts.append(f"{some_workers(len(board.members))} on {len(board.machines)} machines")
    if board.seconds_left is not None:
        parts.append(f"{duration(board.seconds_left)} left")
    return parts


def some_workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count:,} workers"


def steps_redone(steps: int, samples: int) -> str:
    """'3 steps (96 samples)'; nothing for none."""
    if steps == 0:
        return ""
    return (
        f"{'1 step' if steps == 1 else f'{steps:,} steps'} ({'1 sample' if samples == 1 else f'{samples:,} samples'})"
    )


def batch_words(event: events.BatchChosen) -> str:
    """'3 workers take 32 samples a step, 10.7 each; learning rates are multiplied by 0.75'."""
    each = f"{event.worker_batch:.1f}".removesuffix(".0")
    rates = "" if event.lr_factor == 1 else f"; learning rates are multiplied by {event.lr_factor:.4g}"
    take = "takes" if event.workers == 1 else "take"
    return f"{some_workers(event.workers)} {take} {event.global_batch:,} samples a step, {each} each{rates}"


def fault_words(event: events.FaultInjected) -> str:
    """'kill worker 2', 'stop worker 1 for 8.0 s', 'fill-disk for 5.0 s'."""
    whom = f" worker {event.worker}" if event.worker is not None else ""
    whom = f" server {event.server}" if event.server is not None else whom
    lasts = "" if event.seconds is None else f" for {span(event.seconds)}"
    return f"{event.fault}{whom}{lasts}"


def raised_at(traceback: str) -> str:
    """'ValueError at train.py:12': the exception that a traceback ends with, and the script's own line it came from."""
    last = traceback.rpartition("Traceback (most recent call last):")[2]
    error = next((line for line in last.splitlines() if line and not line[0].isspace()), "an exception")
    frames = [(file, line) for file, line in re.findall(r'^ +File "(.+)", line (\d+)', last, re.MULTILINE)]
    own = [frame for frame in frames if not any(part in frame[0] for part in LIBRARIES)] or frames
    name = error.partition(":")[0]
    return f"{name} at {_shown_path(own[-1][0])}:{own[-1][1]}" if own else name


def _shown_path(file: str) -> str:
    """Relative to the current folder, where the file is in it."""
    path, here = Path(file), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else file


def first_line(text: str) -> str:
    """A reason's first line: it may quote a whole traceback, which is shown elsewhere."""
    return text.partition("\n")[0]


def shortly(text: str) -> str:
    """One line of a text: the last line of a traceback, which names the error, otherwise the first."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    return lines[-1] if any(line.startswith("Traceback ") for line in lines) else lines[0]
