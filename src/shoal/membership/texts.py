"""What membership tells people about an address, a token or a setting that does not work; tests refer to these texts.

Not here: why the membership core decides something (`core.reasons`).
"""

from __future__ import annotations

import signal

from shoal.values import Address

NO_CHECKPOINTS = "this coordinator keeps no checkpoints; see --checkpoint-every and --run-dir"


def not_removed(checkpoint: str, why: str) -> str:
    return f"what was written of {checkpoint} could not be removed: {why}; the job goes on"


# Stopping

AGAIN = "(Ctrl-C again to stop now)"
STOPPING_AFTER_STEP = f"stopping after this step {AGAIN}"
STOP_WORDS = {
    signal.SIGINT: "interrupted by Ctrl-C",
    signal.SIGTERM: "stopped by SIGTERM",
    signal.SIGHUP: "stopped because the terminal closed",
    signal.SIGPIPE: "stopped because nobody reads its output any more",
}

# Listening


def no_token(address: Address) -> str:
    return f"listening on {address} without a token would let anybody in; give a token or listen on 127.0.0.1"


def port_in_use(address: Address) -> str:
    return f"cannot listen on {address}: the port is in use; choose another with --address, or 0 for any free one"


def cannot_listen(address: Address, why: object) -> str:
    return f"cannot listen on {address}: {why}; choose another with --address"


# Connecting to the coordinator


def no_coordinator(address: Address, why: object) -> str:
    return f"no coordinator can be reached at {address}: {why}; is the job still running?"


def closes_connections(address: Address) -> str:
    return f"the coordinator at {address} closes new connections; is it busy or over?"


def no_answer(address: Address, seconds: float) -> str:
    return f"the coordinator at {address} did not answer within {seconds:g} s"


def connection_broke(address: Address, why: object) -> str:
    return f"the connection to the coordinator at {address} broke: {why}"


def coordinator_gone(address: Address, why: str) -> str:
    return f"the coordinator at {address} is gone: {why}"


def wrong_token(address: Address) -> str:
    return f"the coordinator at {address} refused this process: wrong token; use the token file of this job"


def foreign_listener(address: Address) -> str:
    return f"whoever listens at {address} does not hold this job's token; is the address right?"


def untrusted(address: Address, why: object) -> str:
    return f"the coordinator at {address}: {why}"


def turned_away(address: Address, why: str) -> str:
    return f"the coordinator at {address} turned this process away: {why}"


# What the script does


def both_write(first: int, second: int, file: str, place: str) -> str:
    """`place`: the script's line."""
    return (
        f"workers {first} and {second} both write {file} ({place}); write it under `if run.is_first:`, or give each "
        "worker a name of its own, such as one with run.rank"
    )


def record_lines_lost(lines: int) -> str:
    return f"{lines:,} lines of the record before this are lost"
