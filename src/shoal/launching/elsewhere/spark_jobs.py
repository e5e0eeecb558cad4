"""`--on spark`: executors of the Spark application that this program has, or of one that it starts."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from pyspark import SparkContext

from shoal.engines.engine import Engine
from shoal.engines.spark import texts
from shoal.engines.spark.own_application import OwnApplication, check_java, check_master
from shoal.engines.spark.spark_provider import SparkProvider
from shoal.environment import inherited
from shoal.errors import UsageError
from shoal.job_config import JobConfig
from shoal.launching.elsewhere.gathering import Elsewhere, Folder, Nodes, gathered, with_reachable_address
from shoal.settings.engines.spark_settings import SparkSettings, spark_properties, spark_wait
from shoal.settings.secret_words import missing_secrets
from shoal.values import Address
from shoal.watch.screen.slow_work import told_if_slow

DRIVER_HOST = "spark.driver.host"
ANYWHERE = "192.0.2.1"  # an address for documentation (RFC 5737): the way to it is that of the default route


def chosen(config: JobConfig, folder: Folder) -> Elsewhere:
    context = SparkContext._active_spark_context  # of a Spark program that calls `shoal.launch`
    given = config.of(SparkSettings).spark
    properties, seconds = spark_properties(given), spark_wait(given)
    if context is None:
        if missing := missing_secrets(given):  # the job is resumed with what its record says
            raise UsageError(texts.spark_secrets_missing(missing))
        check_java()
        check_master(properties.get("spark.master", ""))
    else:
        properties = dict(context.getConf().getAll())

    def open_engine(bound: Address) -> Engine:
        provider = _provider(context, properties, config.workers)
        more = texts.MORE_EXECUTORS
        nodes = Nodes(config, bound, folder, fewest=config.min_workers, seconds=seconds, more_room=more)
        return gathered(provider, nodes)

    return Elsewhere(with_reachable_address(config, lambda: [host_towards(properties, inherited({}))]), open_engine)


def _provider(context: SparkContext | None, properties: Mapping[str, str], slots: int) -> SparkProvider:
    if context is not None:
        return SparkProvider(context, slots, lambda: None)
    with told_if_slow(texts.STARTING_SPARK):
        own = OwnApplication(properties)
    return SparkProvider(own.context, slots, own.close)


def host_towards(properties: Mapping[str, str], variables: Mapping[str, str]) -> str:
    """A host such that the way to it leads to the executors too. Pure."""
    if named := properties.get(DRIVER_HOST) or variables.get("SPARK_LOCAL_IP"):
        return named
    master = properties.get("spark.master", "")
    if master.startswith("local"):
        return "127.0.0.1"
    return urlsplit(master.removeprefix("k8s://").partition(",")[0]).hostname or ANYWHERE
