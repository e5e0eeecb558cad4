"""Progress below a notebook's cell. A real kernel is in tests/integration/test_launch_notebook.py."""

from __future__ import annotations

from typing import Any

import pytest

from shoal import events
from shoal.values import TimeShares
from shoal.watch.screen import notebook


class Place:
    """Where a notebook shows something that changes."""

    def __init__(self) -> None:
        self.shown: list[dict[str, str]] = []

    def update(self, content: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.shown.append(content)


def step(number: int) -> events.StepsApplied:
    return events.StepsApplied(
        worker=0, generation=1, step=number, epoch=0, samples=8 * number, seconds=1.0, shares=TimeShares(compute=1.0),
        bytes_sent=0, values={"<b>loss": 0.5},
    )  # fmt: skip


def test_one_line_is_updated_in_place_and_notices_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Place()

    def display(content: dict[str, str], **options: Any) -> Place:
        place.shown.append(content)
        return place

    monkeypatch.setattr("IPython.display.display", display)
    shown = notebook.Notebook(workers=2)
    shown.show(events.LoopStarted(loop=0, epochs=1, steps_per_epoch=20, global_batch=8, samples_per_epoch=160), 0.0)
    assert not place.shown  # nobody has joined
    shown.show(events.WorkerJoined(worker=0, host="here", process=1, address="127.0.0.1:9"), 0.0)
    assert place.shown[-1]["text/plain"] == "1 of 2 workers are here"
    for number in range(1, 21):
        shown.show(step(number), number / 10)
    assert len(place.shown) == 1 + 4  # 2 s of steps, a drawing every half a second
    shown.show(events.Evaluated(step=20, samples=50, scores={"accuracy": 0.9375}), 2.0)
    shown.close()
    assert place.shown[-1]["text/plain"].startswith("step 20/20, <b>loss 0.5")
    assert '<progress value="20" max="20"></progress> step 20/20, &lt;b&gt;loss' in place.shown[-1]["text/html"]
    assert capsys.readouterr().out == "evaluated at step 20: accuracy 0.9375 (50 samples)\n"


def test_a_program_is_no_notebook() -> None:
    assert not notebook.is_notebook()
