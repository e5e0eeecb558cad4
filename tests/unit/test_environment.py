"""Environment variables: unknown ones of ours are an error, addresses are parsed once, torchrun's are written."""

from __future__ import annotations

import pytest

from shoal.environment import (
    TorchrunPlace,
    WorkerEnvironment,
    parse_address,
    worker_environment,
    worker_variables,
)
from shoal.errors import UsageError
from shoal.values import Address

WORKER = WorkerEnvironment(coordinator=Address("127.0.0.1", 7000), token_file="t", worker=2, launcher=99)


def test_a_worker_reads_what_the_launcher_wrote() -> None:
    variables = worker_variables(WORKER, TorchrunPlace(2, 4, Address("127.0.0.1", 7001)), threads=1)
    assert worker_environment({**variables, "HOME": "/"}) == WORKER
    assert {name: variables[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT")} == {
        "RANK": "2",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "2",
        "MASTER_PORT": "7001",
    }


def test_a_process_without_our_variables_is_no_worker() -> None:
    assert worker_environment({"HOME": "/", "RANK": "1"}) is None


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({"SHOAL_WORKERS": "1"}, "SHOAL_WORKERS is not one of Shoal's; did you mean SHOAL_WORKER?"),
        ({"SHOAL_WORKER": "1"}, "but not SHOAL_COORDINATOR"),
    ],
)
def test_variables_that_are_wrong_or_missing_are_named(variables: dict[str, str], text: str) -> None:
    with pytest.raises(UsageError, match=text.replace("?", r"\?")):
        worker_environment(variables)


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
