"""A command says what it is doing where that takes long, and nothing where it does not."""

from __future__ import annotations

import time

import pytest

from shoal.watch.screen import slow_work


def test_quick_work_is_not_spoken_of(capsys: pytest.CaptureFixture[str]) -> None:
    with slow_work.told_if_slow("reading"):
        pass
    assert capsys.readouterr() == ("", "")


def test_slow_work_is_said_at_once_and_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(slow_work, "FIRST_WORD", 0.01)
    monkeypatch.setattr(slow_work, "AGAIN", 0.01)
    said = ""
    with slow_work.told_if_slow("reading"):
        limit = time.monotonic() + 30
        while said.count("\n") < 3 and time.monotonic() < limit:
            time.sleep(0.01)
            out, err = capsys.readouterr()
            said += err
            assert out == ""
    first, second, *_ = said.splitlines()
    assert first == "shoal: reading ..."
    assert second.startswith("shoal: still reading, after ")
