"""Whether two ranks are in the same operation, and the error when they are not. Pure."""

from __future__ import annotations

from shoal.codecs.registry import codec_name
from shoal.collectives.dtypes import name_of
from shoal.collectives.group import Reduction
from shoal.errors import WorkersDisagree
from shoal.wire.frames import FrameHeader, ReductionCode


def reduction_code(reduction: Reduction | None) -> ReductionCode:
    return ReductionCode.NONE if reduction is None else ReductionCode[reduction.name]


def disagreement(ours: tuple[int, FrameHeader], theirs: tuple[int, FrameHeader]) -> WorkersDisagree:
    """Each side is a rank and the header of its operation."""
    sides = None if ours[1].label == theirs[1].label else ((ours[0], ours[1].label), (theirs[0], theirs[1].label))
    mine, other = repr(ours[1].label), repr(theirs[1].label)
    if mine == other:
        mine, other = describe(ours[1]), describe(theirs[1])
    if mine == other:
        mine, other = describe_transfer(ours[1]), describe_transfer(theirs[1])
    return WorkersDisagree(
        f"rank {ours[0]} is in {mine} while rank {theirs[0]} is in {other}; "
        "all workers must make the same calls in the same order",
        sides=sides,
    )


def describe(header: FrameHeader) -> str:
    kind = header.kind.name.lower().replace("_", "-")
    reduction = f"{header.reduction.name.lower()} of " if header.reduction is not ReductionCode.NONE else ""
    what = f"{reduction}{header.elements} {name_of(header.dtype)}"
    return f"{kind} {header.label!r} (operation {header.sequence}: {what})"


def describe_transfer(header: FrameHeader) -> str:
    return f"{describe(header)}, transfer {header.transfer} of {header.payload} bytes, codec {codec_name(header.codec)}"
