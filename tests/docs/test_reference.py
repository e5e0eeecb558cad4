"""The pages under `docs/reference/` say what the code says."""

from __future__ import annotations

from support.docs.reference import outdated


def test_reference_pages_follow_the_code() -> None:
    assert not outdated().keys(), "write them anew with `python -m tests.support.docs.reference --write`"
