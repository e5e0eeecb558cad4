"""Secrets among the words of a setting: no record and no message has them, and a resumed job asks for them again."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.disk import run_directory
from shoal.errors import UsageError
from shoal.job_config import from_mapping, from_toml
from shoal.settings import texts
from shoal.settings.secret_words import HIDDEN, missing_secrets, without_secrets

SECRETS = (
    "authenticate.secret",
    "spark.ssl.keyPassword",
    "hadoop.fs.s3a.access.key",
    "kubernetes.authenticate.oauthToken",
    "hadoop.hive.credential",
)


@given(st.lists(st.tuples(st.sampled_from(SECRETS), st.text(min_size=1)), min_size=1, max_size=3))
def test_no_secret_is_left_and_the_names_say_what_is_missing(given_ones: list[tuple[str, str]]) -> None:
    words = ["master=yarn", *(f"{name}={value}" for name, value in given_ones)]
    hidden = without_secrets(shlex.join(words))
    assert shlex.split(hidden) == ["master=yarn", *(f"{name}={HIDDEN}" for name, _ in given_ones)]
    assert missing_secrets(hidden) == [name for name, _ in given_ones]
    assert without_secrets(hidden) == hidden


@pytest.mark.parametrize("text", ["", "master=local[2] executor.memory=4g", "a='b  c' d=", "authenticate.secret="])
def test_words_without_secrets_stay_as_they_are(text: str) -> None:
    assert without_secrets(text) == text
    assert missing_secrets(text) == []


def test_a_secret_inside_of_options_for_java_is_hidden_too() -> None:
    text = "driver.extraJavaOptions='-Dx=1 -Djavax.net.ssl.trustStorePassword=hunter2'"
    assert without_secrets(text) == f"driver.extraJavaOptions={HIDDEN}"


def test_a_run_directory_has_no_secret_in_any_file(tmp_path: Path) -> None:
    config = from_mapping(
        {"on": "spark", "spark": "master=yarn authenticate.secret=hunter2", "run-dir": str(tmp_path / "run")},
        origin="a test",
    )
    run_directory.create(config, "train.py").lock.close()
    saved = {path: path.read_text() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert not any("hunter2" in text for text in saved.values())
    read = from_toml(saved[tmp_path / "run" / "config.toml"], origin="the file")  # as the coordinator does
    assert read.values()["spark"] == f"master=yarn authenticate.secret={HIDDEN}"


@pytest.mark.parametrize("text", ["yarn authenticate.secret=hunter2", "authenticate.secret='hunter2"])
def test_a_message_about_a_mistake_has_no_secret(text: str) -> None:
    with pytest.raises(UsageError) as raised:
        from_mapping({"on": "spark", "spark": text}, origin="a test")
    assert "hunter2" not in str(raised.value)
    with pytest.raises(UsageError) as raised:
        from_mapping({"spark": "authenticate.secret=hunter2"}, origin="a test").check_together()
    assert str(raised.value) == texts.only_with_spark(f"authenticate.secret={HIDDEN}")
