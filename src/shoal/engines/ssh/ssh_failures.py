"""Why there is no agent on a host, from what ssh left behind: its exit code and its last lines. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

from shoal.engines import texts
from shoal.engines.nodes.agent_programs import NO_SHOAL, last_line
from shoal.engines.nodes.provider import AGENT_HAS_NO_WAY
from shoal.engines.ssh.hosts_file import Host

SSH_FAILED = 255  # the exit code of ssh where ssh itself has failed
NO_SUCH_PROGRAM = (126, 127)  # of the shell on the host
UNKNOWN = re.compile(r"could not resolve|name or service not known|no address associated", re.IGNORECASE)
BUSY = re.compile(r"(kex|ssh)_exchange_identification", re.IGNORECASE)  # sshd hung up before it said anything
UNREACHED = re.compile(r"connection (refused|timed out|reset|closed)|no route|unreachable|timed out", re.IGNORECASE)


def is_busy(code: int, lines: Sequence[str]) -> bool:
    """Whether a host, or one on the way to it, takes no more connections for a moment (`MaxStartups` of sshd)."""
    return code == SSH_FAILED and any(BUSY.search(line) for line in lines)


def why_no_agent(host: Host, code: int, lines: Sequence[str], known: Iterable[str] = ()) -> str:
    """One line for the user: what is wrong with the host, and what to do. `known`: hosts that ssh does know."""
    said = last_line(lines)
    if code == SSH_FAILED:
        if UNKNOWN.search(said):
            return texts.host_unknown(host.name, host.address, said, nearest(host.address, known))
        if UNREACHED.search(said) and "publickey" not in said:
            return texts.host_unreached(host.name, host.address, said)
        return texts.no_login(host.name, host.address, said)
    if any(NO_SHOAL.search(line) for line in lines):
        return texts.no_shoal_there(host.name, host.python)
    if code in NO_SUCH_PROGRAM:
        return texts.no_python_there(host.name, host.python, said)
    if code == AGENT_HAS_NO_WAY:
        return texts.no_way_back(said)
    return texts.agent_ended(host.name, code, said)


def nearest(address: str, known: Iterable[str]) -> str:
    """The host whose name is nearly the one that ssh does not know; empty: there is none."""
    name = address.rpartition("@")[2]
    others = {each.rpartition("@")[2]: each for each in known}
    others.pop(name, None)
    found = difflib.get_close_matches(name, others, n=1, cutoff=0.7)
    return others[found[0]] if found else ""


def why_lost(code: int, lines: Sequence[str]) -> str:
    """Why a node that was there is gone; follows 'node b is gone: '."""
    if code == SSH_FAILED:
        return texts.ssh_broke(last_line(lines))
    return texts.AGENT_ENDED if code == 0 else texts.agent_failed(code, last_line(lines))
