"""What all messages of a server group have in common."""

from __future__ import annotations

import msgspec

PARAMETER_VERSION = 5


class Note(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of all messages."""
