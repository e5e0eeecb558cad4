"""Nobody waits before a silent screen: each command says what it is doing, or is known to speak by itself."""

from __future__ import annotations

from shoal.cli.main import COMMANDS

SPEAK_THEMSELVES = {
    "run": "the first line of a job comes at once",
    "join": "says which worker of which job it has become, or what it waits for",
    "simulate": "says which share of the days has passed",
    "report": "says so where writing the page is slow; with --live it goes on until the job ends",
    "servers": "the first line of a group comes at once, and asking a group says what it waits for",
    "coordinator": "prints its address",
    "server": "says whom it serves",
    "manifests": "asks nobody, and writes what it has at once",
    "bench": "each benchmark prints what it measures",
}


def test_each_command_says_what_it_does_or_is_known_to_speak_itself() -> None:
    assert {name for name, command in COMMANDS.items() if not command.doing} == set(SPEAK_THEMSELVES)
