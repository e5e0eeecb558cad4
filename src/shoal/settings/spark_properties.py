"""What `--spark` may say: properties of the Spark application that a job starts."""

from __future__ import annotations

import re
import shlex

from shoal.errors import UsageError
from shoal.settings import texts

PROPERTY = re.compile(r"(?P<name>[A-Za-z][\w.-]*)=(?P<value>.*)", re.DOTALL)
PREFIX = "spark."


def spark_properties(text: str) -> dict[str, str]:
    """Words such as `executor.memory=4g`, as a shell would split them, by the names that Spark has for them."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(texts.bad_spark_properties(text, str(error))) from None
    found = {}
    for word in words:
        if (matched := PROPERTY.fullmatch(word)) is None:
            raise UsageError(texts.bad_spark_properties(text, f"{word!r} is no property with its value"))
        found[PREFIX + matched["name"].removeprefix(PREFIX)] = matched["value"]
    return found
