"""Every codec has one name and one wire id, and nobody else has them."""

from __future__ import annotations

import pytest

from shoal.codecs.identity import Identity
from shoal.codecs.registry import codec_by_name, codec_name, codec_names, tables
from shoal.errors import UsageError, WireError
from shoal.job_config import CODECS


def test_names_and_ids_lead_to_each_other() -> None:
    for name in codec_names():
        assert codec_name(codec_by_name(name).wire_id) == name


def test_the_command_line_offers_exactly_the_codecs_there_are() -> None:
    assert codec_names() == CODECS


def test_a_codec_is_made_anew_for_every_group() -> None:
    assert codec_by_name("identity") is not codec_by_name("identity")


def test_a_taken_name_or_id_fails_at_import() -> None:
    class SameName(Identity):
        wire_id = 1

    class SameId(Identity):
        name = "other"

    class NoByte(Identity):
        name = "wide"
        wire_id = 256

    for other, what in ((SameName, "name of its own"), (SameId, "wire id of its own"), (NoByte, "from 0 to 255")):
        with pytest.raises(ValueError, match=what):
            tables((Identity, other))


def test_unknown_codecs_are_named() -> None:
    with pytest.raises(UsageError, match="'zip'; known are identity"):
        codec_by_name("zip")
    with pytest.raises(WireError, match="codec 200"):
        codec_name(200)
