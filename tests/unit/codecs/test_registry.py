"""Every codec has one name and one wire id, and nobody else has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.codecs.identity import Identity
from shoal.codecs.registry import codec_by_name, codec_name, codec_names, tables
from shoal.errors import UsageError, WireError
from shoal.job_config import from_mapping
from shoal.settings.codec_settings import CODECS, CodecSettings
from support.offers import offer


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


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages that offers codecs."""
    codecs = {"sparse": "support.sparse_codec:Sparse", "odd": "pathlib:Path", "low": "support.sparse_codec:Sparse"}
    offer(tmp_path / "site", "shoal.codecs", **codecs)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return tmp_path


@pytest.mark.usefixtures("packages")
def test_a_package_offers_a_codec_and_its_settings() -> None:
    codec = codec_by_name("sparse:above=0.25")
    assert (codec.name, codec.settings.above) == ("sparse", 0.25)
    assert codec_by_name("sparse").settings.above == 1.0
    assert codec_name(codec.wire_id) == "sparse"
    assert from_mapping({"codec": "sparse:above=0.25"}, origin="test").of(CodecSettings).codec == "sparse:above=0.25"


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("sparse:above=-1", r"'sparse:above=-1': .*>= 0.*settings of sparse are: above"),
        ("sparse:below=1", "below.*settings of sparse are: above"),
        ("sparse:above=many", "float.*settings of sparse are: above"),
        ("identity:above=1", "above.*settings of identity are: none"),
        ("sparse:above", "NAME:SETTING=VALUE"),
        ("sparse:above=1,above=2", "NAME:SETTING=VALUE"),
        ("odd", "'odd', is no class of a codec"),
        ("low", "'low', is no class of a codec of that name"),
    ],
)
def test_a_codec_that_cannot_be_made_says_why(text: str, error: str) -> None:
    with pytest.raises(UsageError, match=error):
        codec_by_name(text)


@pytest.mark.usefixtures("packages")
def test_the_command_line_knows_what_packages_offer() -> None:
    with pytest.raises(UsageError, match="did you mean 'sparse'"):
        from_mapping({"codec": "spares"}, origin="test")
