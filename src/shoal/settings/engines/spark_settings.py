"""`--on spark` and its setting `--spark`: properties of the Spark application that a job starts. Pure."""

from __future__ import annotations

import re
import shlex
from typing import Annotated, Any

from msgspec import Meta

from shoal.errors import UsageError
from shoal.settings import texts
from shoal.settings.engines.engine_settings import EngineKind, EngineSettings
from shoal.settings.engines.slurm_settings import time_limit
from shoal.settings.secret_words import without_secrets, word_without_secret

PROPERTY = re.compile(r"(?P<name>[A-Za-z][\w.-]*)=(?P<value>.*)", re.DOTALL)
PREFIX = "spark."
WAIT = "wait"  # Spark has no property of this name


class SparkSettings(EngineSettings, frozen=True, kw_only=True, rename="kebab"):
    spark: Annotated[
        str,
        Meta(
            description='with --on spark: properties of its application, such as "master=spark://node1:7077", and how '
            'long to wait for its executors, such as "wait=10m"'
        ),
    ] = ""

    def check_values(self) -> None:
        spark_properties(self.spark)
        spark_wait(self.spark)

    def recorded(self) -> dict[str, Any]:
        return {"spark": without_secrets(self.spark)}

    def check_unused(self, chosen: str) -> None:  # noqa: ARG002  whichever it is
        if self.spark:
            raise UsageError(texts.only_with_spark(without_secrets(self.spark)))


def spark_properties(text: str) -> dict[str, str]:
    """Words such as `executor.memory=4g`, as a shell would split them, by the names that Spark has for them."""
    return {PREFIX + name: value for name, value in _words(text).items() if name != WAIT}


def spark_wait(text: str) -> float:
    """Seconds of the word `wait=10m`: in this time the first workers must have their executors. 0: nothing is said."""
    if (value := _words(text).get(WAIT)) is None:
        return 0.0
    try:
        return float(time_limit(value))
    except UsageError:
        raise UsageError(texts.bad_spark_wait(value)) from None


def _words(text: str) -> dict[str, str]:
    """Values by name, without the prefix that all names of Spark have."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(texts.bad_spark_properties(without_secrets(text), str(error))) from None
    found = {}
    for word in words:
        if (matched := PROPERTY.fullmatch(word)) is None:
            why = f"{word_without_secret(word)!r} is no property with its value"
            raise UsageError(texts.bad_spark_properties(without_secrets(text), why))
        found[matched["name"].removeprefix(PREFIX)] = matched["value"]
    return found


SPARK = EngineKind(
    name="spark",
    maker="shoal.launching.elsewhere.spark_jobs:chosen",
    settings=SparkSettings,
    package="pyspark",
    requirement="shoal[spark]",
)
