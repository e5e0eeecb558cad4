"""The launcher's end of the process that reserves room in a Ray cluster (`room_keeper`)."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time

import msgspec

from shoal.engines.nodes.agent_programs import last_line
from shoal.engines.ray import texts
from shoal.engines.ray.room_messages import (
    LONGEST_LINE,
    ClusterReached,
    KeeperFailed,
    KeeperMessage,
    OpenRoom,
    RoomReserved,
    RoomWish,
    decode_keepers,
    line_of,
)
from shoal.engines.waiting import wait_for
from shoal.environment import RAY_ADDRESS, inherited
from shoal.errors import UsageError

KEEPER = ("-P", "-m", "shoal.engines.ray.room_keeper")
# Ray sends reports about its use to its makers unless it is told not to.
VARIABLES = {"RAY_USAGE_STATS_ENABLED": "0", RAY_ADDRESS: ""}
CONNECT_SECONDS = 60.0  # to import Ray, and to reach a cluster or to start one
ANSWER_SECONDS = 30.0  # seconds for the answer, after the user's `wait` is over
END_SECONDS = 15.0  # that the keeper may take to end: longer than it gives Ray
LONGEST_WORDS = 64 * 1024  # bytes of what Ray prints


class HeldRoom:
    def __init__(self, room: RoomWish) -> None:
        self._room = room
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  closed in `close`
        self._read = b""  # the beginning of a line
        self._heard: list[KeeperMessage] = []  # read, but not taken yet: several may come at once
        self._is_over = False  # the keeper has closed its output
        self._keeper = subprocess.Popen(
            (sys.executable, *KEEPER),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            bufsize=0,
            env=inherited(VARIABLES),
            start_new_session=True,
        )
        self._write(line_of(room))

    def wait(self) -> None:
        """Until the first workers have room. Raises `UsageError` if they get none."""
        self._expect(ClusterReached, CONNECT_SECONDS)
        self._expect(RoomReserved, self._room.wait + ANSWER_SECONDS)

    def open(self, order: OpenRoom) -> None:
        self._write(line_of(order))

    def fileno(self) -> int:
        """Readable when the keeper has said something, or has ended."""
        assert self._keeper.stdout is not None
        return self._keeper.stdout.fileno()

    def take(self) -> list[KeeperMessage] | None:
        """What the keeper has said. None: it has ended. Blocks if there is nothing to read."""
        if self._heard:
            heard, self._heard = self._heard, []
            return heard
        if self._is_over:
            return None
        data = os.read(self.fileno(), 65536)
        self._is_over = not data or len(self._read) > LONGEST_LINE
        *whole, self._read = (self._read + data).split(b"\n")
        try:
            return None if self._is_over else [decode_keepers(line) for line in whole]
        except msgspec.MsgspecError:
            self._is_over = True
            return None

    def words(self) -> str:
        """The last line that Ray or the keeper has printed."""
        size = self._said.seek(0, os.SEEK_END)
        self._said.seek(max(0, size - LONGEST_WORDS))
        return last_line(self._said.read(LONGEST_WORDS).decode("utf-8", "replace").splitlines())

    def close(self) -> None:
        """Give the room back. Safe to call twice."""
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

    def _expect(self, kind: type[KeeperMessage], seconds: float) -> None:
        """Wait for the next message, which must be of this kind."""
        limit = time.monotonic() + seconds
        while not self._heard:
            if not wait_for([self], max(0.0, limit - time.monotonic())):
                place = self._room.cluster or "this machine"
                raise UsageError(texts.ray_unreachable(place, texts.nothing_heard(seconds)))
            if (said := self.take()) is None:
                raise UsageError(texts.ray_keeper_ended(self.words()))
            self._heard = said
        message = self._heard.pop(0)
        if isinstance(message, KeeperFailed):
            raise UsageError(message.text)
        assert isinstance(message, kind), f"{message} instead of {kind.__name__}"

    def _write(self, line: bytes) -> None:
        assert self._keeper.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended already; its words say why
            self._keeper.stdin.write(line)
