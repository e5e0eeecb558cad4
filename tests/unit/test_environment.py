"""Environment variables: ours are read, misspelt ones are doubted, others' are left alone; torchrun's are written."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from shoal.environment import (
    KNOWN,
    SETTINGS,
    TorchrunPlace,
    WorkerEnvironment,
    likely_typos,
    parse_address,
    travelling_variables,
    worker_environment,
    worker_variables,
)
from shoal.errors import UsageError
from shoal.values import Address

WORKER = WorkerEnvironment(coordinator=Address("127.0.0.1", 7000), token_file="t", worker=2)


def test_a_worker_reads_what_the_launcher_wrote() -> None:
    variables = worker_variables(WORKER.coordinator, 2, TorchrunPlace(2, 4, Address("127.0.0.1", 7001)), threads=1)
    assert worker_environment({**variables, "HOME": "/", "SHOAL_TOKEN_FILE": "t"}) == WORKER
    assert {name: variables[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT")} == {
        "RANK": "2",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "2",
        "MASTER_PORT": "7001",
    }


def test_what_other_machines_need_travels_and_nothing_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("NCCL_", "OMP_"))]:
        monkeypatch.delenv(name)
    given = {"NCCL_SOCKET_IFNAME": "eth0", "SHOAL_NCCL": "0", "OMP_NUM_THREADS": "2"}
    for name, value in {**given, "AWS_SECRET_ACCESS_KEY": "x", "MY_NCCL_THING": "y"}.items():
        monkeypatch.setenv(name, value)
    found = travelling_variables()
    assert {name: found.get(name) for name in given} == given
    assert not {"AWS_SECRET_ACCESS_KEY", "MY_NCCL_THING", "PATH"} & set(found)


def test_a_process_without_our_variables_is_no_worker() -> None:
    assert worker_environment({"HOME": "/", "RANK": "1"}) is None


def test_a_worker_must_have_all_of_its_variables() -> None:
    with pytest.raises(UsageError, match="has SHOAL_WORKER but not SHOAL_COORDINATOR"):
        worker_environment({"SHOAL_WORKER": "1"})


def test_a_token_file_alone_makes_no_worker() -> None:
    """Whoever starts plain torch scripts may set it for the torch backend."""
    assert worker_environment({"SHOAL_TOKEN_FILE": "/run/token"}) is None


CHILD = "from shoal.environment import is_worker_itself; print(is_worker_itself())"
WORKER_WITH_CHILDREN = f"""
import os, subprocess, sys
from shoal.environment import is_worker_itself
def child(**options):
    return subprocess.check_output([sys.executable, "-c", {CHILD!r}], text=True, **options).strip()
before = child()
print(before, is_worker_itself(), child(), child(start_new_session=True), is_worker_itself())
"""


def test_a_worker_is_told_from_the_processes_that_it_starts() -> None:
    """Also from one that leads a session of its own, as torchrun's do, once the worker has asked."""
    command = [sys.executable, "-c", WORKER_WITH_CHILDREN]
    variables = {**os.environ, "SHOAL_PROCESS": ""}
    done = subprocess.run(command, env=variables, start_new_session=True, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "False", "False", "True"]


def kubernetes_variables(service: str, port: int) -> dict[str, str]:
    """What Kubernetes sets in every container for a service with one named port, as its documentation has it."""
    prefix = service.upper().replace("-", "_")
    return {
        f"{prefix}_SERVICE_HOST": "10.0.0.11",
        f"{prefix}_SERVICE_PORT": str(port),
        f"{prefix}_SERVICE_PORT_HTTP": str(port),
        f"{prefix}_PORT": f"tcp://10.0.0.11:{port}",
        f"{prefix}_PORT_{port}_TCP": f"tcp://10.0.0.11:{port}",
        f"{prefix}_PORT_{port}_TCP_PROTO": "tcp",
        f"{prefix}_PORT_{port}_TCP_PORT": str(port),
        f"{prefix}_PORT_{port}_TCP_ADDR": "10.0.0.11",
    }


# The last two begin as variables of ours do, or as a misspelt one would.
@pytest.mark.parametrize("service", ["shoal", "shoal-coordinator", "shoal-worker", "shoal-nccl", "shoal-natve"])
def test_variables_that_kubernetes_sets_for_a_service_mean_nothing(service: str) -> None:
    injected = kubernetes_variables(service, 7000)
    assert worker_environment(injected) is None
    assert likely_typos(injected) == []
    ours = worker_variables(WORKER.coordinator, 2, TorchrunPlace(2, 4, Address("127.0.0.1", 7001)), threads=1)
    assert worker_environment({**injected, **ours, "SHOAL_TOKEN_FILE": "t"}) == WORKER


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("SHOAL_WORKERS", "SHOAL_WORKER"),
        ("SHOAL_WORKR", "SHOAL_WORKER"),
        ("SHOAL_NATVIE", "SHOAL_NATIVE"),
        ("SHOAL_NCLL", "SHOAL_NCCL"),
        ("SHOAL_TOKENFILE", "SHOAL_TOKEN_FILE"),
        ("SHOAL_CORDINATOR", "SHOAL_COORDINATOR"),
    ],
)
def test_a_likely_typing_mistake_is_doubted_and_is_no_error(name: str, meant: str) -> None:
    assert worker_environment({name: "1"}) is None
    (doubt,) = likely_typos({name: "1"})
    assert name in doubt
    assert f"did you mean {meant}?" in doubt


@pytest.mark.parametrize(
    "name", ["SHOAL_HOME", "SHOAL_DATA_DIR", "SHOAL_", "SHOAL_N", "SHOAL_DB_PASSWORD", *KNOWN, *SETTINGS]
)
def test_variables_of_others_and_our_own_are_not_doubted(name: str) -> None:
    assert likely_typos({name: "1"}) == []


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:7000", Address("127.0.0.1", 7000)),
        ("localhost", Address("localhost", 0)),
        ("[::1]:80", Address("::1", 80)),
        ("[::1]", Address("::1", 0)),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert parse_address(text, named="--address") == address
    assert address.port == 0 or parse_address(str(address), named="--address") == address


@pytest.mark.parametrize("text", [":7000", "host:", "host:x", "host:70000", ""])
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="should be HOST:PORT"):
        parse_address(text, named="--address")
