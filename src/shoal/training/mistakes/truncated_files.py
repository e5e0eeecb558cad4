"""Files that the script's own code empties to write them anew, as events.

Whether several workers empty the same file is for the coordinator to see (`membership.record.truncations`); how such
files are noticed is in `file_hook`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import FrameType

from shoal.events import FileTruncated
from shoal.strategies.peers.peers import Peers
from shoal.training.mistakes import file_hook

MOST_FILES = 1000  # that one worker tells of in one generation
LONGEST_PATH = 1000  # characters


class TruncatedFiles:
    """What one worker's process empties while it is in a job."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._process = os.getpid()
        self._generation = -1
        self._seen: set[str] = set()  # in this generation, as the script has them
        self.waiting: list[FileTruncated] = []  # to be told

    def truncated(self, path: object, frame: FrameType | None) -> None:
        """A file is about to be emptied by the code in this frame. Never raises, since `open` would."""
        try:
            self._remember(path, frame)
        except Exception:  # a warning that is missed costs less than a file that is not written
            return

    def _remember(self, path: object, frame: FrameType | None) -> None:
        if isinstance(path, int) or os.getpid() != self._process or self._peers.is_new:
            return
        name = os.fsdecode(path)  # type: ignore[arg-type]  # what cannot be a path raises
        generation = self._peers.generation.number
        if generation != self._generation:
            self._generation, self._seen = generation, set()
        if name in self._seen or len(self._seen) >= MOST_FILES or len(name) > LONGEST_PATH:
            return
        place = file_hook.script_place(frame)
        if place is None:
            return
        self._seen.add(name)
        absolute = os.path.abspath(name)  # noqa: PTH100  a Path takes several times as long
        if file_hook.is_shared(absolute):
            self._tell(absolute, name, place)

    def begin(self) -> None:
        """Tell of what the script emptied before it came to `shoal.main`, and from now on of everything."""
        early = () if file_hook.early is None else file_hook.early.found.values()
        file_hook.watch(self)
        if self._peers.is_new:
            return  # the members' scripts have done the same long ago
        for file in early:
            if len(file.name) <= LONGEST_PATH:
                self._tell(file.path, file.name, file.place)

    def _tell(self, path: str, name: str, place: str) -> None:
        generation = self._peers.generation
        host = generation.members[self._peers.group.rank].host
        self.waiting.append(
            FileTruncated(
                worker=self._peers.worker,
                generation=generation.number,
                host=host,
                path=path,
                name=name,
                place=place,
            )
        )

    def take(self) -> Sequence[FileTruncated]:
        taken, self.waiting = self.waiting, []
        return taken
