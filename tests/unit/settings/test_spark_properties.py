"""What `--spark` may say."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import UsageError
from shoal.job_config import from_mapping
from shoal.settings import texts
from shoal.settings.engines.spark_settings import spark_properties
from shoal.settings.secret_words import HIDDEN

NAMES = st.from_regex(r"[a-z][a-zA-Z]*(\.[a-zA-Z]+){0,3}", fullmatch=True).filter(lambda name: name != "spark")


@given(st.dictionaries(NAMES, st.text(max_size=20), max_size=5), st.booleans())
def test_any_property_comes_back_under_sparks_name(given_ones: dict[str, str], has_prefix: bool) -> None:
    full = {f"spark.{name.removeprefix('spark.')}": value for name, value in given_ones.items()}
    words = full if has_prefix else {name.removeprefix("spark."): value for name, value in full.items()}
    assert spark_properties(shlex.join(f"{name}={value}" for name, value in words.items())) == full


@pytest.mark.parametrize("text", ["master", "=x", "--master=x", "a b=c"])
def test_what_is_no_property_is_named(text: str) -> None:
    with pytest.raises(UsageError) as raised:
        from_mapping({"on": "spark", "spark": text}, origin="a test")
    word = text.split(maxsplit=1)[0]
    assert str(raised.value) == texts.bad_spark_properties(text, f"{word!r} is no property with its value")


def test_what_is_no_property_is_named_without_its_secret() -> None:
    with pytest.raises(UsageError) as raised:
        from_mapping({"on": "spark", "spark": "--authenticate.secret=hunter2"}, origin="a test")
    word = f"--authenticate.secret={HIDDEN}"
    assert str(raised.value) == texts.bad_spark_properties(word, f"{word!r} is no property with its value")


def test_properties_without_spark_are_a_mistake() -> None:
    with pytest.raises(UsageError) as raised:
        from_mapping({"spark": "master=yarn"}, origin="a test").check_together()
    assert str(raised.value) == texts.only_with_spark("master=yarn")
