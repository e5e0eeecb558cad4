"""Which codecs there are, by name and by wire id: Shoal's own, and those of installed packages.

A package offers a codec by an entry point in the group `shoal.codecs` with the codec's name. Nothing else is ever
imported by a name that comes from a command line or from another process. `codec_settings.CODECS` lists Shoal's own
codecs for the command line, which must not wait for torch; a test keeps the two lists equal.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from shoal.codecs.codec import Codec
from shoal.codecs.identity import Identity
from shoal.errors import UsageError, WireError
from shoal.settings.codec_settings import codec_parts, codecs_offered

FIRST_FOREIGN = 128  # wire ids below are for Shoal's own codecs


def tables(codecs: Iterable[type[Codec]]) -> tuple[dict[str, type[Codec]], dict[int, type[Codec]]]:
    """By name and by wire id. Raises ValueError for a name or an id that is missing, out of range or taken."""
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
    """Names of Shoal's own codecs."""
    return tuple(_BY_NAME)


def codec_by_name(text: str) -> Codec:
    """A new codec from the text of `--codec`: a name, or NAME:SETTING=VALUE,... Raises UsageError for a mistake."""
    name, settings = codec_parts(text)
    kind = _BY_NAME.get(name) or _installed(name)
    try:
        return kind(msgspec.convert(settings, kind.Settings, strict=False))
    except msgspec.ValidationError as error:
        known = ", ".join(kind.Settings.__struct_encode_fields__) or "none"
        raise UsageError(f"--codec is {text!r}: {error}; settings of {name} are: {known}") from None


def codec_name(wire_id: int) -> str:
    """The name behind a frame's codec id."""
    if wire_id not in _BY_ID:
        raise WireError(f"a frame names codec {wire_id}; known are {sorted(_BY_ID)}: install the same Shoal everywhere")
    return _BY_ID[wire_id].name


def _installed(name: str) -> type[Codec]:
    """The codec that an installed package offers under that name."""
    found = codecs_offered().get(name)
    if found is None:
        raise UsageError(f"there is no codec {name!r}; known are {', '.join([*_BY_NAME, *codecs_offered()])}")
    kind = found.load()
    if not (isinstance(kind, type) and issubclass(kind, Codec)) or kind.name != name:
        raise UsageError(f"{found.value}, which is offered as the codec {name!r}, is no class of a codec of that name")
    if not FIRST_FOREIGN <= kind.wire_id <= 255 or _BY_ID.setdefault(kind.wire_id, kind) is not kind:
        raise UsageError(
            f"the codec {name!r} of {found.value} has the wire id {kind.wire_id}; it needs one of its own from "
            f"{FIRST_FOREIGN} to 255"
        )
    return kind
