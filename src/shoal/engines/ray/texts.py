"""What the engine over a Ray cluster says to people."""

from __future__ import annotations

from collections.abc import Mapping


def bad_ray_address(address: str) -> str:
    return (
        f"RAY_ADDRESS is {address!r}; it should be HOST:PORT of the cluster's head, such as 10.0.0.1:6379, or auto, or "
        "ray://HOST:10001 for a client outside the cluster"
    )


NO_RAY_CLUSTER = (
    "RAY_ADDRESS is auto, and neither you nor root runs a Ray cluster on this machine; start one with `ray start "
    "--head`, name another user's by its HOST:PORT, or unset RAY_ADDRESS: then one is started for this job"
)


def ray_unreachable(address: str, why: object) -> str:
    return f"the Ray cluster at {address} does not answer: {why}; look at it with `ray status --address {address}`"


def nothing_heard(seconds: float) -> str:
    return f"nothing was heard for {seconds:.0f} s"


def ray_not_started(said: str) -> str:
    return f"no Ray cluster could be started on this machine; Ray said: {said}"


def waiting_for_ray(room: str) -> str:
    return f"waiting for the Ray cluster to have room for {room}"


def ray_room(workers: int, bundle: Mapping[str, float]) -> str:
    """4 x 1 CPU and 1 GPU."""
    return f"{workers} x {' and '.join(_amount(name, number) for name, number in bundle.items())}"


def no_ray_room(room: str, free: Mapping[str, float], nodes: int, seconds: float) -> str:
    there = ", ".join(_amount(name, number) for name, number in free.items())
    return (
        f"the Ray cluster has had no room for {seconds:.0f} s: asked for {room}, free are {there} on "
        f"{nodes} node{'s' * (nodes != 1)}; take fewer workers (-n), ask for less (--threads, --ray), or wait longer "
        "(--ray wait=10m)"
    )


def no_ray_agent(said: str) -> str:
    return f"Ray started no process in the room that it gave; Ray said: {said}"


def nothing_said(seconds: float) -> str:
    return f"nothing within {seconds:.0f} s"


NO_SHOAL_IN_RAY = (
    "the Python that the Ray cluster runs has no Shoal, or an older one; install the same Shoal on all its nodes"
)


def ray_keeper_ended(said: str) -> str:
    return f"the process that keeps the room in the Ray cluster ended; it said: {said}"


def ray_lost(said: str) -> str:
    return f"Ray lost its process there; Ray said: {said}"


def _amount(name: str, number: float) -> str:
    if name == "memory":
        return f"{number / 2**30:.3g} GiB of memory"
    return f"{number:.6g} {name}"
