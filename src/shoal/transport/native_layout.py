"""The numbers that Python's code and the C extension must agree on: places in shared memory, limits and codes. Pure.

The extension has its own copy (`native/layout.h`); `native` compares both when it loads the extension. Not here: what
the places are for (`team`, and the collectives' `memory_loops` and `pieces`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from shoal.wire.frames import ReductionCode

# Offsets and sizes in a team's arena, in bytes.
PHASE, WAITING, STATE, OPERATIONS, ROUNDS, NOTICES = 64, 128, 192, 200, 204, 256
NOTICE_BYTES = 4352
SLOTS = 12288
SLOT_BYTES = 1 << 20
RESULTS = SLOTS + 2 * SLOT_BYTES
LINE = 64  # of the processor's cache
MOST_RANKS = 256  # of one machine
MOST_ENTRIES = 256  # pieces of memory in one operation
STATEMENT_BYTES = 128
MOST_BYTES = 1 << 44  # of an entry: no tensor in a CPU's memory is longer
# Offsets and sizes in a notice, in bytes.
NOTICE_COUNT, NOTICE_IN_SLOT, NOTICE_SCALE, NOTICE_APART, NOTICE_ENTRIES = 128, 132, 136, 144, 192
ENTRY_BYTES, ENTRY_SIZE = 16, 8
# States of a rank.
IN, HAS_FINISHED, HAS_GIVEN_UP = 0, 1, 2
# How an operation ended.
DONE, ABORTED, LOST, DISAGREE, UNREADABLE, STOPPED, LATE, GARBLED = range(8)
# Element types that have loops in C; the collectives' `dtypes` has all types.
ELEMENTS = {"int32": 5, "int64": 6, "float16": 7, "bfloat16": 8, "float32": 9, "float64": 10}
# A mailbox's passage (C: stage): indices of 64-bit words in a neighbour's lines; bytes of a piece; number of pieces.
GIVEN, GIVING, TAKEN, UNTIL = 2, 3, 9, 10
PASSAGE_PIECE, PASSAGE_SLOTS = 256 * 1024, 8

# Every number as the extension names it.
EXPECTED: Mapping[str, int] = {
    "PHASE": PHASE,
    "WAITING": WAITING,
    "STATE": STATE,
    "OPERATIONS": OPERATIONS,
    "ROUNDS": ROUNDS,
    "NOTICES": NOTICES,
    "NOTICE_BYTES": NOTICE_BYTES,
    "SLOTS": SLOTS,
    "SLOT_BYTES": SLOT_BYTES,
    "RESULTS": RESULTS,
    "LINE": LINE,
    "MOST_RANKS": MOST_RANKS,
    "MOST_ENTRIES": MOST_ENTRIES,
    "STATEMENT_BYTES": STATEMENT_BYTES,
    "MOST_BYTES": MOST_BYTES,
    "NOTICE_COUNT": NOTICE_COUNT,
    "NOTICE_STAGED": NOTICE_IN_SLOT,
    "NOTICE_SCALE": NOTICE_SCALE,
    "NOTICE_APART": NOTICE_APART,
    "NOTICE_ENTRIES": NOTICE_ENTRIES,
    "ENTRY_BYTES": ENTRY_BYTES,
    "ENTRY_SIZE": ENTRY_SIZE,
    "IN": IN,
    "FINISHED": HAS_FINISHED,
    "GAVE_UP": HAS_GIVEN_UP,
    "DONE": DONE,
    "ABORTED": ABORTED,
    "LOST": LOST,
    "DISAGREE": DISAGREE,
    "UNREADABLE": UNREADABLE,
    "STOPPED": STOPPED,
    "LATE": LATE,
    "GARBLED": GARBLED,
    **{name.upper(): code for name, code in ELEMENTS.items()},
    "SUM": ReductionCode.SUM,
    "MAX": ReductionCode.MAX,
    "MIN": ReductionCode.MIN,
    "STAGED": GIVEN,
    "GIVING": GIVING,
    "TAKEN": TAKEN,
    "UNTIL": UNTIL,
    "STAGE_PIECE": PASSAGE_PIECE,
    "STAGE_SLOTS": PASSAGE_SLOTS,
}
# Functions of the extension that Python's code calls.
FUNCTIONS = (
    *("team", "all_reduce", "reduce_scatter", "exchange", "trouble", "spin", "idle"),
    *("wait", "give", "take", "read", "copy", "reduce", "fence"),
)


def differences(found: Mapping[str, int], functions: Collection[str]) -> list[str]:
    """In words, how an extension with these numbers and functions differs from what Python's code expects."""
    numbers = [
        f"{name} is {EXPECTED.get(name, 'unknown')} in Python and {found.get(name, 'unknown')} in C"
        for name in (*EXPECTED, *(name for name in found if name not in EXPECTED))
        if EXPECTED.get(name) != found.get(name)
    ]
    return numbers + [f"it has no function {name}" for name in FUNCTIONS if name not in functions]
