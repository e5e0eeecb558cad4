"""Which gradients travel together, and in which order: a pure plan. No tensors here, only sizes.

A group is a run of neighbours in the order in which backward produces gradients, all of one dtype; a large gradient
fills one by itself. All workers must have the same plan: they start with the reverse order of registration, which is
about what backward does, and change to the order that was seen in the first exchange (`gradient_exchange`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

# The first group of several is small, so that bytes leave early in backward.
FIRST_GROUP_PART = 4
# Between machines a model's gradients make at least about so many groups, if the links are worth it: all but the last
# group travel while backward goes on.
GROUPS_OVER_LINKS = 16


@dataclass(frozen=True)
class GradientSize:
    dtype: Hashable
    bytes: int


def first_order(count: int) -> tuple[int, ...]:
    """Before anything is known: the last parameter that was registered comes first."""
    return tuple(reversed(range(count)))


def completed(seen: Iterable[int], count: int) -> tuple[int, ...]:
    """The order in which gradients came, then those that did not come."""
    came = dict.fromkeys(seen)
    return (*came, *(index for index in first_order(count) if index not in came))


def group_size(total: int, *, most: int, least: int) -> int:
    """Bytes of a group, for a model with `total` bytes of gradients.

    `least`: from this size on links take their time for bytes rather than for rounds; 0: not known, or no links.
    """
    return min(most, max(least, total // GROUPS_OVER_LINKS)) if least else most


def plan_groups(
    sizes: Sequence[GradientSize], order: Sequence[int], *, group_bytes: int
) -> tuple[tuple[int, ...], ...]:
    """Indices into `sizes`, each in exactly one group; a group takes more until it holds `group_bytes`.

    Gradients that fit into one group make one: their bytes take less time than another round of messages.
    """
    total = sum(size.bytes for size in sizes)
    first_bytes = group_bytes // FIRST_GROUP_PART if total > group_bytes else group_bytes
    open_groups: dict[Hashable, list[int]] = {}
    filled: dict[Hashable, int] = {}  # bytes in the open group of a dtype
    groups: list[tuple[int, ...]] = []
    for index in order:
        dtype = sizes[index].dtype
        open_groups.setdefault(dtype, []).append(index)
        filled[dtype] = filled.get(dtype, 0) + sizes[index].bytes
        if filled[dtype] >= (group_bytes if groups else first_bytes):
            groups.append(tuple(open_groups.pop(dtype)))
            filled[dtype] = 0
    groups.extend(tuple(group) for group in open_groups.values())
    return tuple(groups)
