"""A log that nobody reads keeps nobody waiting."""

from __future__ import annotations

import os
import subprocess
import sys

SCRIPT = """
from shoal.parameters.connections import trouble_log
for number in range(1000):
    try:
        raise ValueError(f"{number} " + "x" * 3000)
    except ValueError:
        trouble_log.write_exception()
print("done", flush=True)
"""


def test_a_pipe_that_is_full_is_not_waited_for() -> None:
    reading, writing = os.pipe()
    try:
        ended = subprocess.run(
            [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=writing, timeout=60, check=True, text=True
        )
        os.close(writing)
        with os.fdopen(os.dup(reading), "rb") as pipe:
            said = pipe.read()
    finally:
        os.close(reading)
    assert ended.stdout == "done\n"
    assert b"ValueError: 0 x" in said, "what there was room for is there"
