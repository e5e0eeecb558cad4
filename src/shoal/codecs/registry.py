"""Which codecs there are, by name and by wire id. Checked at import: one id, one name, one codec, both ways.

`job_config.CODECS` lists the same names for the command line, which must not wait for torch; a test keeps them equal.
"""

from __future__ import annotations

from collections.abc import Iterable

from shoal.codecs.codec import Codec
from shoal.codecs.identity import Identity
from shoal.errors import UsageError, WireError


def tables(codecs: Iterable[type[Codec]]) -> tuple[dict[str, type[Codec]], dict[int, type[Codec]]]:
    """By name and by wire id. A name or an id that is missing, out of range or taken is a ValueError."""
    by_name: dict[str, type[Codec]] = {}
    by_id: dict[int, type[Codec]] = {}
    for codec in codecs:
        if not codec.name or codec.name in by_name:
            raise ValueError(f"the codec {codec.__name__} needs a name of its own, not {codec.name!r}")
        if not 0 <= codec.wire_id <= 255 or codec.wire_id in by_id:
            raise ValueError(f"the codec {codec.name} needs a wire id of its own from 0 to 255, not {codec.wire_id}")
        by_name[codec.name] = codec
        by_id[codec.wire_id] = codec
    return by_name, by_id


_BY_NAME, _BY_ID = tables((Identity,))


def codec_names() -> tuple[str, ...]:
    return tuple(_BY_NAME)


def codec_by_name(name: str) -> Codec:
    """A fresh codec: one that keeps a residual belongs to one group."""
    if name not in _BY_NAME:
        raise UsageError(f"there is no codec {name!r}; known are {', '.join(_BY_NAME)}")
    return _BY_NAME[name]()


def codec_name(wire_id: int) -> str:
    """The name behind a frame's codec id."""
    if wire_id not in _BY_ID:
        raise WireError(f"a frame names codec {wire_id}; known are {sorted(_BY_ID)}: install the same Shoal everywhere")
    return _BY_ID[wire_id].name
