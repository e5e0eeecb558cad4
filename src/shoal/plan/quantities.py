"""Durations, sizes and rates as people write them: 6h, 10GB, 10Gbit. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from shoal.errors import UsageError

SECONDS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
BYTES = {"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "b": 1.0}
BITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}


def seconds_of(text: str, *, named: str) -> float:
    return _read(text, SECONDS, named, "a duration such as 30s, 10min, 6h or 3d")


def bytes_of(text: str, *, named: str) -> float:
    return _read(text, BYTES, named, "a size such as 500MB or 10GB")


def bits_of(text: str, *, named: str) -> float:
    return _read(text, BITS, named, "a rate such as 100Mbit or 10Gbit per second")


def _read(text: str, units: Mapping[str, float], named: str, wanted: str) -> float:
    found = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,9})?) ?([A-Za-z]+)", text)
    if found is None or found[2].lower() not in units:
        raise UsageError(f"{named} is {text!r}; it should be {wanted}")
    return float(found[1]) * units[found[2].lower()]
