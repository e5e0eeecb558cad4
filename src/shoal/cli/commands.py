"""Tables of commands, and finding one in them. A command is a module with `main(arguments) -> int`.

Modules are imported only when their command is asked for, so that no command pays for another's imports.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shoal.cli import texts
from shoal.errors import UsageError
from shoal.watch.screen.slow_work import told_if_slow


@dataclass(frozen=True)
class Command:
    module: str
    line: str  # for --help
    doing: str = ""  # what a user who waits for its result is told; empty: the command says it itself


def dispatch(program: str, commands: Mapping[str, Command], arguments: Sequence[str]) -> int:
    """Run the command that the first argument names, with the other arguments."""
    if not arguments:
        raise UsageError(texts.no_command_given(commands, program))
    name, *rest = arguments
    if name in ("-h", "--help"):
        print(_help(program, commands))
        return 0
    if name not in commands:
        raise UsageError(texts.no_such_command(name, commands, program))
    command = commands[name]
    with told_if_slow(command.doing) if command.doing else contextlib.nullcontext():
        code: int = importlib.import_module(command.module).main(rest)
    return code


def _help(program: str, commands: Mapping[str, Command]) -> str:
    lines = "\n".join(f"  {name:<12} {command.line}" for name, command in commands.items())
    return f"usage: {program} COMMAND [options]\n\n{lines}\n\n`{program} COMMAND --help` lists a command's options."
