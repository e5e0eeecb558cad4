"""Which codec encodes tensors that cross from host to host, as a user names it: NAME, or NAME:SETTING=VALUE,...

Packages offer codecs by entry points. This module reads the metadata of entry points and imports no codec. Not here:
the settings of a codec, which the codec declares and checks itself (`codecs.codec`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from msgspec import Meta

from shoal.errors import UsageError
from shoal.settings import texts
from shoal.settings.setting_checks import offered, one_of
from shoal.settings.strategy_settings import StrategySettings

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

CODECS = ("identity",)  # Shoal's own; installed packages may offer others
CODEC_GROUP = "shoal.codecs"  # of the entry points by which packages offer codecs


class CodecSettings(StrategySettings, frozen=True, kw_only=True, rename="kebab"):
    title: ClassVar[str] = "codec"

    codec: Annotated[
        str,
        Meta(
            description="encoding of tensors between hosts, servers too: identity, or a codec of an installed package"
        ),
    ] = "identity"

    def check_values(self) -> None:
        name = codec_parts(self.codec)[0]
        one_of("codec", name, CODECS if name in CODECS else (*CODECS, *codecs_offered()))


def codec_parts(text: str) -> tuple[str, dict[str, str]]:
    """`int8:bits=4,seed=3` names the codec int8 and two settings. The codec checks its settings when it is made."""
    name, colon, rest = text.partition(":")
    settings: dict[str, str] = {}
    for part in rest.split(",") if colon else ():
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals or not key or key in settings:
            raise UsageError(texts.bad_codec(text))
        settings[key] = value
    return name, settings


def codecs_offered() -> dict[str, EntryPoint]:
    """Codecs of installed packages, by name."""
    return offered(CODEC_GROUP)
