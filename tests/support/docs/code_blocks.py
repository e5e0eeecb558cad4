"""Code blocks of a page, and running them as `docs/contributing-docs.md` describes.

Not here: which pages are run (`tests/docs/test_code_blocks.py`).
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r'^(?P<indent> *)(?P<ticks>`{3,})(?P<language>[\w-]*)(?: title="(?P<title>[^"]+)")?\s*$')
UNREADABLE = re.compile(r"^ *`{3,}")
NOT_RUN = ("text", "toml", "json", "diff", "markdown", "css", "yaml")
HERE = re.compile(r"(?m)^(?P<indent> *)# HERE$")
NUMBER = re.compile(r"\d+([.,:]\d+)*")
PATIENCE = 600.0  # seconds for one block; generous, since the machine may be busy


class WrongBlock(AssertionError):
    """A block that is not written as the format asks, or does not do what it says."""


@dataclass(frozen=True)
class Block:
    place: str  # page:line
    language: str
    title: str
    text: str
    mark: str = ""  # the comment in front of the fence, without its signs

    def has(self, mark: str) -> bool:
        return self.mark.startswith(mark)

    @property
    def marks(self) -> dict[str, str]:
        """`exit: 3; output` as a dictionary."""
        parts = (part.partition(":") for part in self.mark.split(";"))
        return {name.strip(): value.strip() for name, _colon, value in parts if name.strip()}


def blocks_in(page: Path) -> Iterator[Block]:
    lines = page.read_text(encoding="utf-8").split("\n")
    index, mark = 0, ""
    while index < len(lines):
        line, place = lines[index], f"{page.name}:{index + 1}"
        if line.lstrip().startswith("<!--"):
            end = next(number for number in range(index, len(lines)) if "-->" in lines[number])
            mark = "\n".join(lines[index : end + 1]).strip().removeprefix("<!--").removesuffix("-->").strip(" ")
            index = end + 1
            if mark.startswith("file:"):  # a file that the reader need not see
                name, _newline, text = mark.removeprefix("file:").strip(" ").partition("\n")
                yield Block(place, "text", name.strip(), text)
                mark = ""
            continue
        if fence := FENCE.match(line):
            end = next(number for number in range(index + 1, len(lines)) if lines[number].strip() == fence["ticks"])
            text = textwrap.dedent("\n".join(lines[index + 1 : end])) + "\n"
            yield Block(place, fence["language"], fence["title"] or "", text, mark)
            index = end
        elif UNREADABLE.match(line):
            raise WrongBlock(f'{place}: {line.strip()!r} is not a language and at most title="..."')
        mark = ""
        index += 1


def run_page(page: Path, folder: Path) -> None:
    """Run all blocks of a page in a folder."""
    for block in blocks_in(page):
        run_block(block, folder)


def run_block(block: Block, folder: Path) -> None:
    if block.has("no-run"):
        if not block.marks.get("no-run"):
            raise WrongBlock(f"{block.place}: say why: <!-- no-run: REASON -->")
        if block.language == "python":
            compiled(block)
    elif block.has("part of"):
        check_passage(block, folder / block.marks["part of"])
    elif block.title:
        (folder / block.title).parent.mkdir(parents=True, exist_ok=True)
        (folder / block.title).write_text(block.text, encoding="utf-8")
    elif block.language == "console":
        run_console(block, folder)
    elif block.language == "python":
        run_python(block, folder)
    elif block.language not in NOT_RUN:
        raise WrongBlock(f"{block.place}: {block.language or 'no language'}; write `console` with `$ `, or `text`")


def compiled(block: Block) -> None:
    try:
        compile(block.text, block.place, "exec", flags=0, dont_inherit=True)
    except SyntaxError as error:
        raise WrongBlock(f"{block.place}: {error}") from None


def check_passage(block: Block, file: Path) -> None:
    if not file.is_file():
        raise WrongBlock(f"{block.place}: no block before this one is titled {file.name}")
    there = iter(line.strip() for line in file.read_text(encoding="utf-8").split("\n"))
    for line in block.text.split("\n"):
        if line.strip() and line.strip() not in there:
            raise WrongBlock(f"{block.place}: {line.strip()!r} is not in {file.name}, or not in this order")


def run_python(block: Block, folder: Path) -> None:
    text = block.text
    if block.has("around"):
        around = block.mark.removeprefix("around").strip("\n") + "\n"
        place = HERE.search(around)
        if place is None:
            raise WrongBlock(f"{block.place}: the comment `around` has no line `# HERE`")
        inner = textwrap.indent(text.rstrip("\n"), place["indent"])
        text = around[: place.start()] + inner + around[place.end() :]
    script = folder / f"block-{block.place.rpartition(':')[2]}.py"
    script.write_text(text, encoding="utf-8")
    code, output = executed([sys.executable, script.name], folder)
    if code != 0:
        raise WrongBlock(f"{block.place}: ended with exit code {code}:\n{output}")


def run_console(block: Block, folder: Path) -> None:
    commands, expected = console_parts(block)
    script = "set -eo pipefail\n" + "\n".join(commands) + "\nwait\n"
    code, output = executed(["bash", "-c", script], folder)
    wanted = int(block.marks.get("exit", "0"))
    if code != wanted:
        raise WrongBlock(f"{block.place}: ended with exit code {code} instead of {wanted}:\n{output}")
    if "output" in block.marks:
        compare(block, expected, output)


def console_parts(block: Block) -> tuple[list[str], list[str]]:
    """Commands, and lines of output."""
    commands: list[str] = []
    expected: list[str] = []
    goes_on = False
    for line in block.text.rstrip("\n").split("\n"):
        if goes_on or line.startswith("$ "):
            commands.append(line if goes_on else line.removeprefix("$ "))
            goes_on = line.endswith("\\")
        else:
            expected.append(line)
    if not commands:
        raise WrongBlock(f"{block.place}: no line begins with `$ `; output alone is `text`")
    return commands, expected


def compare(block: Block, expected: list[str], output: str) -> None:
    loose = "numbers" in block.marks["output"]
    real = iter(output.split("\n"))
    for line in expected:
        pattern = pattern_of(line.strip(), loose=loose)
        if line.strip() not in ("", "…") and not any(pattern.fullmatch(other.strip()) for other in real):
            raise WrongBlock(f"{block.place}: the output has no line {line.strip()!r}, or not in this order:\n{output}")


def pattern_of(line: str, *, loose: bool) -> re.Pattern[str]:
    """`…` stands for anything; with `loose`, a number for any number and blanks for any number of them."""
    parts = []
    for part in line.split("…"):
        texts = NUMBER.sub("\0", part).split("\0") if loose else [part]
        parts.append(NUMBER.pattern.join(re.sub(r"(\\ )+", r"\\s+", re.escape(text)) for text in texts))
    return re.compile(".*".join(parts))


def executed(command: list[str], folder: Path) -> tuple[int, str]:
    """Exit code, and both outputs together. What is left of it after a while is ended."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment(folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _none = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _none = process.communicate()
        raise WrongBlock(f"{command} has not ended after {PATIENCE:g} s:\n{output}") from None
    return process.returncode, output


def environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SHOAL_", "PYTEST_"))}
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return kept | {"PATH": programs, "HOME": str(folder), "COLUMNS": "100", "OMP_NUM_THREADS": "1"}
