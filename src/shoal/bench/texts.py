"""What `shoal bench` says about bad options. Tests refer to these texts, so that mending a word breaks none of them."""

from __future__ import annotations

from collections.abc import Sequence

# Options of several benchmarks


def not_above_zero(option: str, value: float) -> str:
    return f"--{option} is {value}; it should be above 0"


# Checkpoint


def folder_not_written(folder: str, why: str | None) -> str:
    return f"--to is {folder!r}, which cannot be written: {why}"


def window_too_short(seconds: float) -> str:
    return f"--window is {seconds:g}, but a step takes longer; make windows longer or the state smaller"


# Collectives

NO_DEEPSPEED = "--deepspeed: the package deepspeed is not installed in this environment"


def bad_ranks(text: str) -> str:
    return f"--ranks is {text!r}; it should be numbers from 2 to 64, such as 2,4"


def bad_sizes(text: str) -> str:
    return f"--sizes is {text!r}; it should be bytes from 4 to 4096m, such as 8,64k,16m"


def program_missing(program: str) -> str:
    return f"--namespaces needs the program {program!r}, which is not installed"


def machines_not_made(command: Sequence[str], why: str) -> str:
    return f"--namespaces cannot make its machines: {' '.join(command)}: {why}"


# Links and recovery

BAD_RECOVERY = "--kills and --turns should be 1 or more, and --every at most --window"


def bad_workers(workers: int, most: int) -> str:
    return f"--workers is {workers}; links need from 2 to {most} processes"
