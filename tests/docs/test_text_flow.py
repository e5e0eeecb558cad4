"""Texts are found wherever a module writes them: a message that nobody finds would stay without its page."""

from __future__ import annotations

import ast

import pytest

from support.docs.message_texts import error_names, templates
from support.docs.text_flow import Flow

WAYS = {
    "written where the error is made": """
def check(n):
    raise UsageError(f"there are {n} workers")
""",
    "in a variable": """
def check(n):
    text = f"there are {n} workers"
    raise UsageError(text)
""",
    "as one of two": """
def check(n, loss):
    return Verdict("WorkerLost", loss or f"there are {n} workers")
""",
    "by a private function": """
def _bad(text):
    return UsageError(text)

def check(n):
    raise _bad(f"there are {n} workers")
""",
    "by a method": """
class Check:
    def check(self, n):
        self._refuse(n, f"there are {n} workers")

    def _refuse(self, n, why):
        self.out.append(Refusal(kind="no", reason=why))
""",
    "returned by a function": """
def _counted(n):
    return f"there are {n} workers"

def check(n):
    self.note(Waiting(reason=_counted(n)))
""",
    "on standard error": """
def check(n):
    said = f"there are {n} workers"
    print(f"shoal: {said}", file=sys.stderr)
""",
    "while something takes long": """
def check(n):
    with told_if_slow(f"there are {n} workers"):
        wait()
""",
    "as an error of torch": """
def check(n):
    raise DistBackendError(f"there are {n} workers")
""",
}


@pytest.mark.parametrize("source", WAYS.values(), ids=WAYS)
def test_a_text_is_found(source: str) -> None:
    assert "there are … workers" in found_in(source)


def test_a_piece_of_a_text_is_found_by_itself_if_it_says_something() -> None:
    source = """
def check(n):
    why = "nobody is there to start others"
    kind = "worker"
    raise UsageError(texts.none_left(n, why, kind))
"""
    assert found_in(source) == {"nobody is there to start others"}


def test_values_that_nobody_reads_are_no_texts() -> None:
    assert not found_in('def check(n):\n    name = "a name of a file"\n    return open(name, mode="rb")\n')


def found_in(source: str) -> set[str]:
    return {text for _name, text in Flow(ast.parse(source), error_names()).written(templates)}
