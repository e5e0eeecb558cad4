"""Which Ray cluster a job uses: the one that is named, the one that Ray has noted, or none."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.engines.ray import texts
from shoal.engines.ray.cluster_address import cluster_address, place_of
from shoal.errors import UsageError
from shoal.values import Address


@pytest.fixture
def running() -> Iterator[str]:
    """The address of something that answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def stopped() -> str:
    """One where nothing answers any more."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def note(folder: Path, address: str) -> dict[str, str]:
    """Variables of a user whose Ray has noted this address."""
    (folder / "ray").mkdir(exist_ok=True)
    (folder / "ray" / "ray_current_cluster").write_text(f"{address}\n")
    return {"RAY_TMPDIR": str(folder)}


def test_the_cluster_that_is_named_comes_before_the_one_that_was_noted(tmp_path: Path, running: str) -> None:
    assert cluster_address({**note(tmp_path, "127.0.0.1:1"), "RAY_ADDRESS": running}) == running
    assert cluster_address({"RAY_ADDRESS": f"ray://{running}"}) == f"ray://{running}"


def test_the_noted_cluster_is_used_if_it_answers(tmp_path: Path, running: str, stopped: str) -> None:
    assert cluster_address(note(tmp_path, running)) == running
    assert cluster_address({**note(tmp_path, running), "RAY_ADDRESS": "auto"}) == running
    assert cluster_address(note(tmp_path, stopped)) == ""
    assert cluster_address(note(tmp_path, "no address")) == ""
    assert cluster_address({"RAY_TMPDIR": str(tmp_path / "nowhere")}) == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
@pytest.mark.parametrize("whose", ["ray", "ray/ray_current_cluster"])
def test_a_cluster_that_another_user_has_noted_is_not_used(tmp_path: Path, running: str, whose: str) -> None:
    """The folder is under /tmp, where everybody may write, and the cluster would get the job's script and token."""
    variables = note(tmp_path, running)
    os.chown(tmp_path / whose, 65534, -1)
    assert cluster_address(variables) == ""
    with pytest.raises(UsageError) as failed:
        cluster_address({**variables, "RAY_ADDRESS": "auto"})
    assert str(failed.value) == texts.NO_RAY_CLUSTER
    assert cluster_address({**variables, "RAY_ADDRESS": running}) == running, "the user has named it"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
@pytest.mark.parametrize("whose", ["ray", "ray/ray_current_cluster"])
def test_another_user_s_link_to_a_note_of_this_user_is_not_used(tmp_path: Path, running: str, whose: str) -> None:
    variables = note(tmp_path, running)
    noted = tmp_path / whose
    noted.rename(tmp_path / "own")
    noted.symlink_to(tmp_path / "own")
    assert cluster_address(variables) == running
    os.lchown(noted, 65534, -1)
    assert cluster_address(variables) == ""


def test_a_named_cluster_that_does_not_answer_is_an_error(tmp_path: Path, stopped: str) -> None:
    with pytest.raises(UsageError) as failed:
        cluster_address({"RAY_ADDRESS": stopped})
    assert str(failed.value) == texts.ray_unreachable(stopped, "Connection refused")
    with pytest.raises(UsageError) as failed:
        cluster_address({"RAY_ADDRESS": "auto", "RAY_TMPDIR": str(tmp_path)})
    assert str(failed.value) == texts.NO_RAY_CLUSTER


@pytest.mark.parametrize("address", ["head", "head:0", "head:99999", "http://head:6379", "head:6379/x", "a b:6379"])
def test_what_is_no_address_is_an_error(address: str) -> None:
    assert place_of(address) is None
    with pytest.raises(UsageError) as failed:
        cluster_address({"RAY_ADDRESS": address})
    assert str(failed.value) == texts.bad_ray_address(address)


def test_hosts_of_addresses() -> None:
    assert place_of("head:6379") == Address("head", 6379)
    assert place_of("ray://10.0.0.1:10001") == Address("10.0.0.1", 10001)
    assert place_of("[::1]:6379") == Address("::1", 6379)
