"""What several checks of settings use: names that are nearly right, names that packages offer, sizes."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

from shoal.errors import UsageError
from shoal.settings import texts

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

MOST_LOCAL = 256  # processes that one machine starts and watches
UNITS = {"": 1, "B": 1} | {f"{letter}B": 1000 ** (power + 1) for power, letter in enumerate("KMGT")}
UNITS |= {f"{letter}iB": 1024 ** (power + 1) for power, letter in enumerate("KMGT")}


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UsageError(texts.not_one_of(name, value, nearest(value, allowed)))


def nearest(name: str, known: tuple[str, ...]) -> str:
    """'did you mean X?' if a known name is similar, otherwise the list of known names."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return texts.did_you_mean(near[0]) if near else texts.there_is(known)


def offered(group: str) -> dict[str, EntryPoint]:
    """The entry points of installed packages in this group, by name. Reads metadata and imports nothing."""
    from importlib.metadata import entry_points  # noqa: PLC0415  takes a while, and few jobs need it

    return {point.name: point for point in entry_points(group=group)}


def size_of(text: str, *, named: str) -> int:
    """Bytes of a text such as 2GB, 512MiB or 1000."""
    match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,6})?) ?([A-Za-z]*)", text.strip())
    unit = {name.lower(): size for name, size in UNITS.items()}.get(match[2].lower()) if match else None
    if match is None or unit is None or float(match[1]) * unit < 1:
        raise UsageError(texts.bad_size(named, text))
    return int(float(match[1]) * unit)
