"""How a peer's stream ended, and which rank to name for it. Pure.

A worker that leaves ends each stream with a mark, which says that it has finished, or whose loss made it give up. A
killed worker sends no mark. So a survivor can tell a finished peer from a dead one, and the dead peer from those that
merely stopped because of it. The mark is shorter than a frame's header and is sent only between frames, so it can never
be taken for data.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace

from shoal.errors import PeerLost

_LAYOUT = struct.Struct("!11sBi")
_MAGIC = b"shoal-ends\0"
_CUT = 2  # in the place of whether the peer had finished: 0 or 1
ENDING_BYTES = _LAYOUT.size


@dataclass(frozen=True)
class StreamEnding:
    """What is known of a stream that ended."""

    announced: bool  # the peer said that it leaves; False: it was cut off
    clean: bool = False  # the peer had finished everything
    blamed: int | None = None  # rank whose loss made the peer leave
    partial: bool = False  # cut off inside a frame: the peer may be alive, but could not send its mark between frames
    silent: bool = False  # the peer's machine does not answer: the peer may be alive, but out of reach
    cut: bool = False  # the peer left because some machine does not answer: others may be out of reach too


DIED = StreamEnding(announced=False)
CUT_OFF = StreamEnding(announced=False, partial=True)
SILENT = StreamEnding(announced=False, partial=True, silent=True)
FINISHED = StreamEnding(announced=True, clean=True)


def pack_ending(ending: StreamEnding) -> bytes:
    state = _CUT if ending.cut else int(ending.clean)
    return _LAYOUT.pack(_MAGIC, state, -1 if ending.blamed is None else ending.blamed)


def unpack_ending(tail: bytes) -> StreamEnding:
    """`tail`: the last bytes of a stream, as many as there are."""
    if len(tail) >= ENDING_BYTES:
        magic, state, blamed = _LAYOUT.unpack(tail[-ENDING_BYTES:])
        if magic == _MAGIC and state in (0, 1, _CUT) and blamed >= -1:
            blames = None if blamed < 0 else blamed
            return StreamEnding(announced=True, clean=state == 1, blamed=blames, cut=state == _CUT)
    return CUT_OFF if tail else DIED


def credible(ending: StreamEnding, size: int) -> StreamEnding:
    """The same ending, without the blamed rank if a mesh of this size has no such rank."""
    return ending if ending.blamed is None or 0 <= ending.blamed < size else replace(ending, blamed=None)


def name_the_lost(endings: Mapping[int, StreamEnding], *, own: int, awaited: int | None) -> PeerLost | None:
    """The error that names a lost rank, given all streams that ended and the rank whose bytes we need. None: no loss.

    `own` is this rank: a peer that left because it could not reach us has merely given up, as far as we can tell.
    """
    endings = {
        rank: replace(ending, blamed=None) if ending.blamed == own else ending for rank, ending in endings.items()
    }
    dead = [rank for rank, ending in endings.items() if not ending.announced and not ending.partial]
    if dead:
        rank = awaited if awaited in dead else dead[0]
        return PeerLost(f"rank {rank} is gone: its connection closed without a word", peer=rank)
    for rank, ending in endings.items():
        if ending.blamed is not None and ending.blamed != rank:
            return PeerLost(f"rank {ending.blamed} is gone, says rank {rank}", peer=ending.blamed)
    gave_up = [
        rank for rank, ending in endings.items() if ending.announced and not ending.clean and ending.blamed is None
    ]
    if gave_up:
        rank = awaited if awaited in gave_up else gave_up[0]
        return PeerLost(f"rank {rank} left: it gave up its operations", peer=rank)
    cut = [rank for rank, ending in endings.items() if not ending.announced]
    if cut:
        rank = awaited if awaited in cut else cut[0]
        if endings[rank].silent:
            return PeerLost(f"rank {rank} cannot be reached any more: its machine does not answer", peer=rank)
        return PeerLost(f"rank {rank} is gone: its connection closed in the middle of a transfer", peer=rank)
    if any(not ending.clean for ending in endings.values()):
        rank = next(rank for rank, ending in endings.items() if not ending.clean)
        return PeerLost(f"rank {rank} left: it gave up its operations", peer=rank)
    if awaited in endings:
        return PeerLost(f"rank {awaited} left: it had finished, while this rank still needs its data", peer=awaited)
    return None
