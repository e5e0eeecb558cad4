"""The C extension is used only where it and Python's code mean the same, and refuses what it cannot do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as some

from shoal.transport.native import checked
from shoal.transport.native_layout import EXPECTED, FUNCTIONS, differences

NATIVE = Path(__file__).parents[3] / "src" / "shoal" / "native"


def module_with(layout: dict[str, int], functions: tuple[str, ...] = FUNCTIONS) -> ModuleType:
    module = ModuleType("shoal._native")
    module.__file__ = "/somewhere/_native.so"
    for name in functions:
        setattr(module, name, None)
    module.LAYOUT = layout  # type: ignore[attr-defined]  # as the extension has it
    return module


def test_the_extension_that_was_built_agrees() -> None:
    built = pytest.importorskip("shoal._native")
    assert differences(built.LAYOUT, dir(built)) == []
    assert checked(built) is built


@given(some.sampled_from(sorted(EXPECTED)), some.integers(-5, 5).filter(bool))
def test_a_number_that_differs_is_told_and_the_extension_not_used(name: str, by: int) -> None:
    doctored = {**EXPECTED, name: EXPECTED[name] + by}
    told = f"{name} is {EXPECTED[name]} in Python and {EXPECTED[name] + by} in C"
    assert differences(doctored, FUNCTIONS) == [told]
    with pytest.warns(RuntimeWarning, match=f"_native.so was built from other sources.*{told}.*Install Shoal again"):
        assert checked(module_with(doctored)) is None


def test_numbers_and_functions_that_one_side_lacks_are_told() -> None:
    fewer = {name: number for name, number in EXPECTED.items() if name != "SLOTS"}
    assert differences({**fewer, "ROOMS": 7}, FUNCTIONS) == [
        "SLOTS is 12288 in Python and unknown in C",
        "ROOMS is unknown in Python and 7 in C",
    ]
    assert differences(EXPECTED, FUNCTIONS[1:]) == ["it has no function team"]
    with pytest.warns(RuntimeWarning, match="and more"):
        assert checked(module_with({}, ())) is None


def test_a_process_that_finds_another_extension_works_without_it() -> None:
    program = """
import sys, types, warnings
doctored = types.ModuleType("shoal._native")
doctored.__file__ = "/somewhere/_native.so"
sys.modules["shoal._native"] = doctored
import shoal
shoal._native = doctored
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    from shoal.transport.native import native
from shoal.transport.memory import cross_memory
from shoal.transport.memory import futex
from shoal.transport.memory import memory_order
print(native, len(found), memory_order.why_not)
"""
    ended = subprocess.run(
        ["env", "SHOAL_NATIVE=1", sys.executable, "-c", program],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.stdout, ended.returncode) == ("None 1 \n", 0), ended.stderr


def test_a_second_thread_that_reads_shares_nothing_with_the_first(tmp_path: Path) -> None:
    """Both halves of a long read fail, under a tool that finds accesses of two threads to one field."""
    program, source = tmp_path / "halves", tmp_path / "halves.c"
    source.write_text("""
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include "team.h"
static int interrupted(Team *t) { (void)t; return DONE; }
int main(void) {
    static Team team;
    static char arenas[2][ROUNDS + 64];
    size_t bytes = 8u << 20;
    char *to = malloc(bytes), *from = malloc(bytes);
    team.size = 2, team.cores = 8;
    for (int r = 0; r < 2; r++) team.base[r] = arenas[r], team.process[r] = getpid(), team.deaths[r].fd = -1;
    memset(from, 7, bytes);
    int whole = pull_fast(&team, 1, to, (uint64_t)(uintptr_t)from, bytes, 1), is_same = !memcmp(to, from, bytes);
    int how = pull_fast(&team, 1, to, 4096, bytes, 1);
    printf("%d %d %d %d %d\\n", whole, is_same, how == UNREADABLE, team.culprit, team.error == EFAULT);
    return 0;
}
""")
    command = [
        "gcc",
        "-std=gnu11",
        "-g",
        "-O1",
        "-w",
        "-fsanitize=thread",
        f"-I{NATIVE}",
        str(source),
        "-o",
        str(program),
    ]
    try:
        compiled = subprocess.run([*command, "-pthread"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no compiler here")
    if compiled.returncode and "tsan" in compiled.stderr:
        pytest.skip("the compiler has no tool for threads")
    assert compiled.returncode == 0, compiled.stderr
    ended = subprocess.run([program], capture_output=True, text=True, check=False)
    assert (ended.stdout, ended.stderr, ended.returncode) == ("0 1 1 1 1\n", "", 0)
