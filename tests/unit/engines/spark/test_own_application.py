"""The file in which properties reach Spark: Java reads every value as it was given."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from shoal.engines.spark.own_application import properties_file

WORDS = st.text(max_size=30)


def as_java_reads(line: str) -> tuple[str, str]:
    """A line of codes, letters and digits; nothing else has to be known of Java's format."""
    name, _, value = line.partition("=")
    return decoded(name), decoded(value)


def decoded(text: str) -> str:
    first, *coded = text.split("\\u")
    units = (bytes.fromhex(part[:4]) + part[4:].encode("utf-16-be") for part in coded)
    return b"".join((first.encode("utf-16-be"), *units)).decode("utf-16-be", "surrogatepass")


@given(st.dictionaries(WORDS, WORDS, max_size=5))
def test_every_value_survives(settings: dict[str, str]) -> None:
    lines = properties_file(settings).decode("ascii").splitlines()
    assert dict(map(as_java_reads, lines)) == settings


def test_the_beginning_of_a_comment_and_the_end_of_a_line_have_no_meaning() -> None:
    assert properties_file({"spark.a": "#b\n c\\"}) == b"spark\\u002ea=\\u0023b\\u000a\\u0020c\\u005c\n"
