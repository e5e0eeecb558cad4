"""How long somebody may say nothing: it is asked once, at half of the limit, and given up at its end."""

from __future__ import annotations

from shoal.parameters.connections.patience import Listening, Silence


def looks(listening: Listening, *times: float) -> list[Silence]:
    return [listening.look(now) for now in times]


def test_it_is_asked_once_and_then_given_up() -> None:
    listening = Listening(2.0, now=10.0)
    found = looks(listening, 10.5, 11.0, 11.1, 11.5, 12.0, 12.1)
    assert found == [*[Silence.NONE] * 2, Silence.ASK, *[Silence.NONE] * 2, Silence.LOST]


def test_a_word_begins_it_anew() -> None:
    listening = Listening(2.0, now=10.0)
    assert looks(listening, 10.6, 11.2)[-1] is Silence.ASK
    listening.heard(11.3)
    assert looks(listening, 11.9, 12.2, 12.5) == [Silence.NONE, Silence.NONE, Silence.ASK]


def test_time_in_which_nobody_looked_is_not_counted() -> None:
    listening = Listening(2.0, now=10.0)
    assert looks(listening, 10.5, 500.0, 500.5) == [Silence.NONE, Silence.ASK, Silence.NONE]
    assert looks(listening, 500.6) == [Silence.LOST]
