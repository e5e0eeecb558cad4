"""What checks of settings have in common: names that are nearly right, names that packages offer, sizes."""

from __future__ import annotations

import difflib
import importlib.metadata
import re

from shoal.errors import UsageError

MOST_LOCAL = 256  # processes that one machine starts and watches
UNITS = {"": 1, "B": 1} | {f"{letter}B": 1000 ** (power + 1) for power, letter in enumerate("KMGT")}
UNITS |= {f"{letter}iB": 1024 ** (power + 1) for power, letter in enumerate("KMGT")}


def one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UsageError(f"--{name} is {value!r}; {nearest(value, allowed)}")


def nearest(name: str, known: tuple[str, ...]) -> str:
    """'did you mean X?' where something is close, else the list of what there is."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else f"there is {', '.join(known)}"


def offered(group: str) -> dict[str, importlib.metadata.EntryPoint]:
    """By name: what installed packages offer in this group of entry points. Reads metadata and imports nothing."""
    return {point.name: point for point in importlib.metadata.entry_points(group=group)}


def size_of(text: str, *, named: str) -> int:
    """Bytes of a text such as 2GB, 512MiB or 1000."""
    match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,6})?) ?([A-Za-z]*)", text.strip())
    unit = {name.lower(): size for name, size in UNITS.items()}.get(match[2].lower()) if match else None
    if match is None or unit is None or float(match[1]) * unit < 1:
        raise UsageError(f"{named} is {text!r}; it should be a size such as 2GB, 512MB or 1.5GiB")
    return int(float(match[1]) * unit)
