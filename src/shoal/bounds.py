"""How large input from outside may be: types with bounds for every message, record and file.

Decoding checks the bounds. A test walks every type that is decoded anywhere and fails on a number, text, list or
mapping without a bound. Bounds are generous: sums and products of a few of these numbers fit into the 63 bits with
which files, sockets, tensors and other machines count. Tighter limits (blocks of a table, workers of a job) are checked
where they are known.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

from msgspec import Meta

Item = TypeVar("Item")

LARGEST = 2**63 - 1

# Numbers that identify things: workers, servers, ranks, generations, versions of a map, loops, processes.
Ordinal = Annotated[int, Meta(ge=0, le=2**31 - 1)]
OrdinalOrNone = Annotated[int, Meta(ge=-1, le=2**31 - 1)]  # -1: none
# Counts of samples, steps, epochs, updates, requests, entries. The sum of thousands of counts is a `Total`.
Count = Annotated[int, Meta(ge=0, le=2**48)]
CountOrNone = Annotated[int, Meta(ge=-1, le=2**48)]  # -1: none
Size = Annotated[int, Meta(ge=0, le=2**48)]  # bytes of one thing
PlaceOrNone = Annotated[int, Meta(ge=-1, le=2**48)]  # byte in a stretch of memory; -1: nowhere
# Sums of counts, with more room than the counts themselves.
Total = Annotated[int, Meta(ge=0, le=LARGEST)]
TotalOrNone = Annotated[int, Meta(ge=-1, le=LARGEST)]  # -1: none
Whole = Annotated[int, Meta(ge=-LARGEST - 1, le=LARGEST)]  # any number of 64 bits
Port = Annotated[int, Meta(ge=0, le=65535)]
ExitCode = Annotated[int, Meta(ge=-1024, le=1024)]  # negative: the number of the signal that ended the process

MOST_NAME = 4096  # characters: paths are the longest
MOST_TEXT = 1 << 22  # characters; no control message is longer
MOST_MEMBERS = 1 << 16  # of a generation or a group; a job has at most 10,000 workers
MOST_ITEMS = 1 << 20  # in a list of one message or file, if no tighter limit is known

Name = Annotated[str, Meta(max_length=MOST_NAME)]  # of hosts, jobs, tensors, files, operations, kinds of things
Text = Annotated[str, Meta(max_length=MOST_TEXT)]  # for people, or a whole file
Members = Annotated[tuple[Item, ...], Meta(max_length=MOST_MEMBERS)]
Items = Annotated[tuple[Item, ...], Meta(max_length=MOST_ITEMS)]
ItemList = Annotated[list[Item], Meta(max_length=MOST_ITEMS)]
ByNumber = Annotated[dict[Ordinal, Item], Meta(max_length=MOST_ITEMS)]  # of workers, mostly
Shape = Annotated[tuple[Count, ...], Meta(max_length=64)]  # of a tensor; torch has at most 64 dimensions
Settings = Annotated[dict[Name, Text | Whole | float | bool], Meta(max_length=MOST_MEMBERS)]  # as in config.toml
Values = Annotated[dict[Name, float | None], Meta(max_length=MOST_MEMBERS)]  # by name; None: nan or infinite
