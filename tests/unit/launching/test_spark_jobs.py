"""What `--on spark` makes of its setting, and where executors of Spark find the launcher."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from shoal.disk import run_directory
from shoal.disk.resuming import resumed_settings
from shoal.disk.settings_merge import merge
from shoal.engines.spark import texts
from shoal.errors import UsageError
from shoal.job_config import from_mapping
from shoal.launching.elsewhere.spark_jobs import ANYWHERE, chosen, host_towards
from shoal.settings import texts as setting_texts
from shoal.settings.engines.spark_settings import spark_properties, spark_wait


@pytest.mark.parametrize(
    ("properties", "variables", "host"),
    [
        ({"spark.driver.host": "10.0.0.9", "spark.master": "spark://node1:7077"}, {}, "10.0.0.9"),
        ({"spark.master": "spark://node1:7077"}, {"SPARK_LOCAL_IP": "10.0.0.8"}, "10.0.0.8"),
        ({"spark.master": "spark://node1:7077,node2:7077"}, {}, "node1"),
        ({"spark.master": "k8s://https://api.cluster:6443"}, {}, "api.cluster"),
        ({"spark.master": "local-cluster[2,1,1024]"}, {}, "127.0.0.1"),
        ({"spark.master": "local[*]"}, {}, "127.0.0.1"),
        ({"spark.master": "yarn"}, {}, ANYWHERE),
        ({}, {}, ANYWHERE),
    ],
)
def test_the_address_is_that_of_the_way_to_the_cluster(
    properties: dict[str, str], variables: dict[str, str], host: str
) -> None:
    assert host_towards(properties, variables) == host


def test_a_resumed_job_whose_secret_is_not_in_its_record_says_that_it_is_needed(tmp_path: Path) -> None:
    given = {"on": "spark", "spark": "master=local[1] authenticate=true authenticate.secret=hunter2"}
    begun = run_directory.create(from_mapping({**given, "run-dir": str(tmp_path / "run")}, origin="a test"), "train.py")
    begun.lock.close()
    again = partial(merge, {"resume": str(begun.path)}, file=None, origin="a test")
    resumed = resumed_settings(again(), lambda base: again(base=base))
    with pytest.raises(UsageError) as raised:
        chosen(resumed, None)
    assert str(raised.value) == texts.spark_secrets_missing(["authenticate.secret"])


@pytest.mark.parametrize(("word", "seconds"), [("", 0.0), ("wait=10m", 600.0), ("spark.wait=90s", 90.0)])
def test_how_long_to_wait_for_executors_is_no_property_of_spark(word: str, seconds: float) -> None:
    text = f"master=yarn {word}"
    assert spark_wait(text) == seconds
    assert spark_properties(text) == {"spark.master": "yarn"}


def test_a_wait_that_is_no_time_is_named() -> None:
    with pytest.raises(UsageError) as raised:
        from_mapping({"on": "spark", "spark": "wait=long"}, origin="a test")
    assert str(raised.value) == setting_texts.bad_spark_wait("long")
