"""What becomes of a setting that a script gives to `shoal.main`, alone and under `shoal run`."""

from __future__ import annotations

import pytest

from shoal.errors import UsageError
from shoal.job_config import JobConfig, from_mapping
from shoal.settings import texts
from shoal.settings.given_by_script import TREATMENTS, check_alone, in_job

DEFAULTS = JobConfig().values()


def test_the_table_has_every_setting() -> None:
    assert TREATMENTS.keys() == DEFAULTS.keys()


@pytest.mark.parametrize(
    ("settings", "command"),
    [
        ({"workers": 2}, "shoal run -n 2 my.py"),
        ({"spares": 1}, "shoal run --spares 1 my.py"),
        ({"chaos": "kill worker every 15s"}, "shoal run --chaos 'kill worker every 15s' my.py"),
        ({"servers": "2"}, "shoal run --strategy parameter-server --servers 2 my.py"),
        (
            {"strategy": "parameter-server", "normalize": True},
            "shoal run --strategy parameter-server --normalize my.py",
        ),
    ],
)
def test_what_needs_other_processes_is_refused_alone_with_the_command_that_starts_them(
    settings: dict[str, object], command: str
) -> None:
    with pytest.raises(UsageError) as refused:
        check_alone(settings, DEFAULTS, script="my.py")
    given = ", ".join(f"{name}={value!r}" for name, value in settings.items())
    assert str(refused.value) == texts.not_alone(given, command)


@pytest.mark.parametrize(
    "settings",
    [{"workers": 1}, {"seed": 3, "run-dir": "x"}, {"heartbeat-limit": 9.0, "codec": "identity"}, {"strategy": "mine"}],
)
def test_what_one_process_can_honour_or_need_not_is_fine_alone(settings: dict[str, object]) -> None:
    check_alone(settings, DEFAULTS, script="my.py")


def test_a_job_takes_over_what_its_command_line_left_open() -> None:
    job = from_mapping({"workers": 2, "seed": 5}, origin="x").values()
    wanted = {"seed": 7, "checkpoint-every": "10", "progress": "none", "workers": 2}
    taken = in_job(wanted, job, ("workers", "seed"), script="my.py")
    assert (taken.values, taken.told) == ({"checkpoint-every": "10"}, [])


def test_what_a_running_job_cannot_take_over_is_told_unless_the_command_line_sets_it() -> None:
    job = from_mapping({"run-dir": "runs/now"}, origin="x").values()
    said = texts.not_honoured("run_dir='out'", "run_dir='runs/now'", "shoal run --run-dir out my.py")
    assert in_job({"run-dir": "out"}, job, (), script="my.py").told == [said]
    for given in ("run-dir", "resume"):  # a job that is resumed goes on in its own folder
        assert in_job({"run-dir": "out"}, job, (given,), script="my.py").told == []


@pytest.mark.parametrize(
    ("name", "value", "given"),
    [("workers", 4, ("workers",)), ("strategy", "mine", ()), ("heartbeat-limit", 9.0, ()), ("codec", "mine", ())],
)
def test_what_would_make_it_another_job_is_refused(name: str, value: object, given: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=f"shoal.main is given {name.replace('-', '_')}={value!r}"):
        in_job({name: value}, DEFAULTS, given, script="my.py")


def test_a_job_cannot_turn_into_a_resumed_one() -> None:
    with pytest.raises(UsageError) as refused:
        in_job({"resume": "last"}, DEFAULTS, (), script="my.py")
    assert str(refused.value) == texts.resume_in_job("resume='last'", "shoal run --resume last my.py")
    assert in_job({"resume": "last"}, DEFAULTS, ("resume",), script="my.py").values == {}


def test_limits_on_the_command_line_beat_those_of_the_script() -> None:
    assert in_job({"heartbeat-limit": 9.0}, DEFAULTS, ("heartbeat-limit",), script="my.py").values == {}
