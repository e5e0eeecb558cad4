"""What users are told where the calls of two workers' scripts differ. `next_call`: the job's next call, in words."""

from __future__ import annotations

ADVICE = "start it with the script and the arguments that the job was started with"
DATA_ADVICE = "give it the data that the job was started with, all of them: run.batches deals them out"


def fewer_calls_here(count: int, next_call: str) -> str:
    return f"the script came to the place of the job after {count} calls, and in the job {next_call} comes next"


def fewer_calls(count: int, next_call: str) -> str:
    return f"the script came to its end after {count} calls, and in the job {next_call} comes next"


def calls_counted(one: str, two: str, first: int, second: int) -> str:
    return f"the scripts of {one} and {two} have made {first} and {second} calls when a loop starts"


def calls_differ(one: str, two: str, most: int) -> str:
    return f"the scripts of {one} and {two} differ after their first {most} calls"
