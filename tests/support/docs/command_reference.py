"""The pages `reference/commands.md` and `reference/settings.md`: from parsers and from fields of settings."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from typing import NoReturn
from unittest import mock

from shoal.bench.benchmarks import BENCHMARKS
from shoal.cli.jobs import servers
from shoal.cli.main import COMMANDS
from shoal.cli.options import GROUPS, SHORT, Parser, Setting, settings, settings_in
from shoal.settings.kinds import OWN_STRATEGIES, settings_of

TAKES_SETTINGS = ("run", "manifests")  # commands whose settings stand on a page of their own
COMMANDS_INTRO = """\
# Commands

`shoal COMMAND --help` prints the same. This page is made from the code: `python -m tests.support.docs.reference
--write`. Every command ends with one of the [exit codes](../exit-codes.md). RUN is a run directory, its name or the
beginning of its name under `runs/`, or `last`, the newest one.

| command | what it does |
| --- | --- |
"""
SETTINGS_INTRO = """\
# Settings

Every setting of a job. This page is made from the code: `python -m tests.support.docs.reference --write`. Each
setting has one name: an option of `shoal run`, a keyword of `shoal.launch` and `shoal.main`, and a key of a TOML file
that `--config` reads. The default is what the Python and TOML columns show. How the three go together, and what the
settings mean for each other, is in [configuration](../configuration.md).

On the command line a switch is `--open` or `--no-open`. In Python and TOML, both `run_dir` and `run-dir` are
understood.
"""


class Caught(Exception):
    """A command has made its parser."""

    def __init__(self, parser: Parser) -> None:
        super().__init__()
        self.parser = parser


def parser_of(module: str, arguments: Sequence[str] = ()) -> Parser:
    """The parser that a command makes; the command does nothing else."""

    def catch(self: Parser, arguments: Sequence[str]) -> NoReturn:
        raise Caught(self)

    with mock.patch.object(Parser, "parse_all", catch):
        try:
            importlib.import_module(module).main([*arguments])
        except Caught as caught:
            return caught.parser
    raise AssertionError(f"{module} reads its command line in another way")


def all_parsers() -> Iterator[tuple[str, Parser]]:
    for name, command in COMMANDS.items():
        if name == "servers":
            yield from ((f"servers {each}", parser_of(command.module, [each])) for each in servers.COMMANDS)
        elif name == "bench":
            yield from ((f"bench {each}", parser_of(benchmark.module)) for each, benchmark in BENCHMARKS.items())
        else:
            yield name, parser_of(command.module)


@mock.patch.dict(os.environ, {"COLUMNS": "88"})  # argparse breaks the lines of a usage by it
def commands_page() -> str:
    lines = [COMMANDS_INTRO.rstrip("\n")]
    for name, command in COMMANDS.items():
        target = {"servers": "servers-start", "bench": "bench-training"}.get(name, name)
        lines.append(f"| [`shoal {name}`](#shoal-{target}) | {cell(command.line)} |")
    for name, parser in all_parsers():
        lines += ["", f"## shoal {name}", "", *command_lines(name, parser)]
    return "\n".join(lines) + "\n"


def command_lines(name: str, parser: Parser) -> Iterator[str]:
    usage = re.sub(r"^usage: ", "", parser.format_usage().strip())
    yield f"```text\n{re.sub(r'(?m)^       ', '', usage)}\n```"
    if parser.description:
        yield f"\n{parser.description.strip()}"
    elif name.startswith("bench "):
        yield f"\nMeasures {BENCHMARKS[name.removeprefix('bench ')].line}."
    if name in TAKES_SETTINGS:
        yield "\nEvery [setting](settings.md) is an option, and:"
    hidden = {*settings()} if name in TAKES_SETTINGS else set()
    rows = [row(action) for action in parser._actions if shown(action) and action.dest not in hidden]
    if rows:
        yield "\n| argument or option | meaning |\n| --- | --- |"
        yield from rows


def shown(action: argparse.Action) -> bool:
    return action.help != argparse.SUPPRESS and not isinstance(action, argparse._HelpAction)


def row(action: argparse.Action) -> str:
    metavar = action.metavar or (action.dest.upper() if action.nargs != 0 else "")
    if action.option_strings:
        value = f" {metavar}" if action.nargs != 0 and not isinstance(action, argparse._StoreTrueAction) else ""
        called = ", ".join(f"`{option}{value}`" for option in action.option_strings)
    else:
        called = f"`{metavar}`"
    text = (action.help or "") % {"default": action.default, "prog": ""} if "%" in (action.help or "") else action.help
    default = action.default
    if action.option_strings and "default" not in (text or "") and default not in (None, False, argparse.SUPPRESS, ""):
        text = f"{text or ''} (default: {default})".strip()
    return f"| {called} | {cell(text or '')} |"


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def settings_page() -> str:
    known = settings()
    lines = [SETTINGS_INTRO.rstrip("\n")]
    for title, names in GROUPS.items():
        lines += table(title, [known[name] for name in names])
        if title == "training":
            for kind in settings_of(OWN_STRATEGIES.values()):
                lines += table(kind.title, list(settings_in(kind).values()))
    return "\n".join(lines) + "\n"


def table(title: str, rows: Sequence[Setting]) -> Iterator[str]:
    yield f"\n## {title[0].upper()}{title[1:]}\n"
    yield "| command line | Python | TOML | meaning |\n| --- | --- | --- | --- |"
    for setting in rows:
        option = f"`--{setting.name}`" + (f", `{SHORT[setting.name]}`" if setting.name in SHORT else "")
        python = f"`{setting.name.replace('-', '_')}={setting.default!r}`"
        toml = f"`{setting.name} = {json.dumps(setting.default)}`"
        yield f"| {option} | {python} | {toml} | {cell(setting.description)} |"
