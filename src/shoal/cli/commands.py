"""Tables of commands, and finding one in them. A command is a module with `main(arguments) -> int`.

Modules are imported only when their command is asked for, so that no command pays for another's imports.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shoal.errors import UsageError
from shoal.settings.setting_checks import nearest


@dataclass(frozen=True)
class Command:
    module: str
    line: str  # for --help


def dispatch(program: str, commands: Mapping[str, Command], arguments: Sequence[str]) -> int:
    """Run the command that the first argument names with the rest of them."""
    if not arguments:
        raise UsageError(f"no command given; there is {', '.join(commands)} (see `{program} --help`)")
    name, *rest = arguments
    if name in ("-h", "--help"):
        print(_help(program, commands))
        return 0
    if name not in commands:
        raise UsageError(f"there is no command {name!r}; {nearest(name, tuple(commands))} (see `{program} --help`)")
    code: int = importlib.import_module(commands[name].module).main(rest)
    return code


def _help(program: str, commands: Mapping[str, Command]) -> str:
    lines = "\n".join(f"  {name:<12} {command.line}" for name, command in commands.items())
    return f"usage: {program} COMMAND [options]\n\n{lines}\n\n`{program} COMMAND --help` lists a command's options."
