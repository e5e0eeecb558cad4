"""What `--on spark` says to people."""

from __future__ import annotations

from collections.abc import Sequence


def no_java(home: str) -> str:
    where = f"JAVA_HOME is {home}, where there is no bin/java" if home else "there is no java on the PATH"
    return f"--on spark needs Java, and {where}; install it (Debian: openjdk-17-jre-headless), or set JAVA_HOME"


NO_SPARK_MASTER = (
    "--on spark was told no cluster: pass --spark master=spark://HOST:7077 (or yarn, k8s://...), or set spark.master "
    "in spark-defaults.conf"
)
STARTING_SPARK = "starting a Spark application"
MORE_EXECUTORS = (
    "give Spark more free cores: more executors (executor.instances, or cores.max of a standalone cluster), or the end "
    "of other applications; if they take longer to come, wait for them with --spark wait=10m"
)


def spark_secrets_missing(names: Sequence[str]) -> str:
    return (
        f"the record of this job has no secrets, and its --spark had {', '.join(names)}; give --spark again, with all "
        "its properties"
    )


def no_spark_master_there(master: str, why: object) -> str:
    return f"no master of Spark answers at {master}: {why}; see whether it runs, and whether the address is right"


def no_spark_application(said: str) -> str:
    return f"Spark started no application; look at the master and at --spark; Spark said: {said}"


def no_shoal_in_executor(said: str) -> str:
    return (
        "the Python of Spark's executors has no Shoal, or an older one; install the same Shoal there, or name another "
        f"Python with PYSPARK_PYTHON; it said: {said}"
    )


def no_python_in_executor(python: str) -> str:
    return (
        f"Spark's executors cannot run {python}; put this Python where they find it under the same path, or name "
        "another one with PYSPARK_PYTHON"
    )


def other_python_in_executor(said: str) -> str:
    return (
        f"Spark's executors have another Python than this machine; name the same one with PYSPARK_PYTHON; Spark said: "
        f"{said}"
    )


def spark_job_failed(said: str) -> str:
    return f"Spark's job for a worker failed; Spark said: {said}"
