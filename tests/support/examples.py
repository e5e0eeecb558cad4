"""How many examples a property gets whose test asks for a number of its own."""

from __future__ import annotations

from hypothesis import settings

ORDINARY = 100  # examples of a property whose test asks for none


def scaled(count: int) -> int:
    """As many, or as small a share of them as the profile has of the ordinary number (`make test`: a quarter)."""
    return max(10, count * settings().max_examples // ORDINARY)
