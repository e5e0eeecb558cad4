"""Where executors of Spark find the launcher."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from shoal.launching.elsewhere.spark_jobs import ANYWHERE, host_towards


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
