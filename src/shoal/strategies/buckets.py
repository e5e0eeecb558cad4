"""Which gradients travel together: a pure plan of flat buffers. No torch tensors here, only sizes.

Parameters are taken in reverse order of registration, which is about the order in which backward produces their
gradients. A bucket holds one dtype and ends with one flag per parameter: how many workers used it in this exchange.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

# The first bucket is small, so that bytes leave early in backward.
FIRST_BUCKET_PART = 4


@dataclass(frozen=True)
class ParameterSize:
    dtype: Hashable
    elements: int
    element_bytes: int


@dataclass(frozen=True)
class Slot:
    parameter: int  # index into the list the plan was made from
    offset: int  # in elements
    elements: int


@dataclass(frozen=True)
class BucketPlan:
    dtype: Hashable
    slots: tuple[Slot, ...]

    @property
    def flags_at(self) -> int:
        """Offset of the flags, which follow the last slot."""
        return self.slots[-1].offset + self.slots[-1].elements

    @property
    def elements(self) -> int:
        return self.flags_at + len(self.slots)


def plan_buckets(sizes: Sequence[ParameterSize], *, bucket_bytes: int) -> tuple[BucketPlan, ...]:
    """Each parameter in exactly one slot; a bucket takes parameters until it holds `bucket_bytes`."""
    open_slots: dict[Hashable, list[Slot]] = {}
    filled: dict[Hashable, int] = {}  # bytes in the open bucket of a dtype
    plans: list[BucketPlan] = []
    for index in reversed(range(len(sizes))):
        size = sizes[index]
        slots = open_slots.setdefault(size.dtype, [])
        offset = slots[-1].offset + slots[-1].elements if slots else 0
        slots.append(Slot(parameter=index, offset=offset, elements=size.elements))
        filled[size.dtype] = filled.get(size.dtype, 0) + size.elements * size.element_bytes
        limit = bucket_bytes if plans else bucket_bytes // FIRST_BUCKET_PART
        if filled[size.dtype] >= limit:
            plans.append(BucketPlan(dtype=size.dtype, slots=tuple(open_slots.pop(size.dtype))))
            filled[size.dtype] = 0
    plans.extend(BucketPlan(dtype=dtype, slots=tuple(slots)) for dtype, slots in open_slots.items())
    return tuple(plans)
