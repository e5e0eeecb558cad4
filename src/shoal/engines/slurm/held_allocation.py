"""An allocation that the launcher asks for, and that ends with it: `salloc` with a small program that holds it.

The holder tells the allocation's variables and ends when its standard input does, also if the launcher is killed. Not
here: what is asked for (`allocation`), the end of a request that waits (`allocation_keeper`).
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from shoal.bounds import Name, Text
from shoal.engines import texts
from shoal.engines.slurm.allocation import Wish, salloc_command
from shoal.engines.slurm.slurm_programs import error_line, find_program
from shoal.errors import UsageError

MARK = "allocation of shoal: "  # before the holder's line: other programs of the cluster may print something too
HOLD = f"""
import json, os, sys
told = json.dumps({{name: value for name, value in os.environ.items() if name.startswith("SLURM_")}})
print("{MARK}" + told, flush=True)
sys.stdin.read()
"""
Variables = Annotated[dict[Name, Text], Meta(max_length=4096)]  # of Slurm, by name
MOST_BYTES = 1024 * 1024  # that salloc and its holder print
LONGEST_WORDS = 64 * 1024  # bytes of what salloc says
END_SECONDS = 15.0  # that the keeper may take: longer than it gives salloc


class HeldAllocation:
    def __init__(self, wish: Wish) -> None:
        """Ask for it. Raises `UsageError` where there is no salloc."""
        command = salloc_command(find_program("salloc"), wish, (sys.executable, "-I", "-c", HOLD))
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  closed in `close`
        keeper = str(Path(__file__).with_name("allocation_keeper.py"))
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", keeper, MARK, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            bufsize=0,
            start_new_session=True,
        )

    def wait(self) -> dict[str, str]:
        """Slurm's variables, once it has given the allocation. Raises `UsageError` with its words if it does not.

        Programs of the cluster, such as a wrapper of salloc, may print other lines before.
        """
        assert self._keeper.stdout is not None
        printed = b""
        while (line := _marked_line(printed)) is None:
            data = self._keeper.stdout.read(65536)
            if not data or len(printed) > MOST_BYTES:
                raise UsageError(texts.allocation_refused(self._words(printed)))
            printed += data
        try:
            return msgspec.json.decode(line, type=Variables)
        except msgspec.MsgspecError:
            raise UsageError(texts.allocation_refused(self._words(printed))) from None

    def close(self) -> None:
        """Give it back, or the request. Safe to call twice."""
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._keeper.stdin.close()
        try:
            self._keeper.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            self._keeper.wait()
        self._keeper.stdout.close()
        self._said.close()

    def _words(self, printed: bytes) -> str:
        """What salloc said last, among its errors if there are any."""
        self._said.seek(0)
        said = printed[-LONGEST_WORDS:] + b"\n" + self._said.read(LONGEST_WORDS)
        return error_line(said.decode("utf-8", "replace").splitlines())


def _marked_line(printed: bytes) -> bytes | None:
    """The holder's line, without its mark; None: it has not come yet."""
    _, mark, rest = printed.partition(MARK.encode())
    line, end, _ = rest.partition(b"\n")
    return line if mark and end else None
