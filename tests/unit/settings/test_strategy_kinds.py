"""Strategies by name: Shoal's own, and what installed packages offer."""

from __future__ import annotations

import pkgutil
from pathlib import Path

import pytest

from shoal.cli.jobs.run import parser
from shoal.cli.options import config_from
from shoal.disk.settings_merge import merge
from shoal.errors import UsageError
from shoal.job_config import from_mapping, from_toml
from shoal.settings import texts
from shoal.settings.all_reduce_settings import AllReduceSettings
from shoal.settings.kinds import OWN_STRATEGIES, STRATEGIES
from support.local_steps_settings import LOCAL_STEPS, LocalStepsSettings
from support.offers import offer


@pytest.fixture
def _packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {
        "local_steps": "support.local_steps_settings:LOCAL_STEPS",
        "odd": "pathlib:Path",
        "gone": "nowhere.at.all:KIND",
        "other": "support.local_steps_settings:LOCAL_STEPS",
    }
    offer(tmp_path / "site", "shoal.strategies", **kinds)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))


def test_every_strategy_of_our_own_can_be_made() -> None:
    assert all(
        name == kind.name and callable(pkgutil.resolve_name(kind.maker)) for name, kind in OWN_STRATEGIES.items()
    )


@pytest.mark.usefixtures("_packages")
def test_a_package_offers_a_strategy_with_settings_of_its_own() -> None:
    config = from_mapping({"strategy": "local-steps", "mean_every": 7, "schedule": "ring"}, origin="test")
    assert config.of(LocalStepsSettings).mean_every == config.manners.every == 7
    assert config.of(AllReduceSettings).schedule == "ring"
    assert from_toml(config.to_toml(), origin="test") == config
    assert STRATEGIES.beside_own() == [LOCAL_STEPS]


@pytest.mark.usefixtures("_packages")
@pytest.mark.parametrize("arguments", [("--strategy", "local-steps", "--mean-every", "7"), ("--mean-every=7",)])
def test_its_settings_are_options_of_the_command_line(arguments: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text('strategy = "local-steps"\n')
    parsed = parser().parse_all([*arguments, "--config", str(file), "train.py", "--mean-every", "x"])
    assert config_from(parsed).of(LocalStepsSettings).mean_every == 7
    assert (parsed.script, parsed.arguments) == ("train.py", ["--mean-every", "x"])
    assert "--mean-every" in parser().format_help()


@pytest.mark.usefixtures("_packages")
def test_a_job_that_goes_on_with_another_strategy_leaves_them_behind() -> None:
    recorded = {"strategy": "local-steps", "mean-every": 7, "schedule": "ring", "seed": 3}
    config = merge({"strategy": "all-reduce"}, file=None, origin="test", base=recorded)
    assert (config.of(LocalStepsSettings).mean_every, config.of(AllReduceSettings).schedule, config.seed) == (
        50,
        "ring",
        3,
    )


@pytest.mark.usefixtures("_packages")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "gossip",
            texts.not_one_of(
                "strategy", "gossip", texts.there_is([*OWN_STRATEGIES, "local-steps", "odd", "gone", "other"])
            ),
        ),
        ("local-step", texts.not_one_of("strategy", "local-step", texts.did_you_mean("local-steps"))),
        ("odd", texts.no_such_kind("strategy", "odd", "pathlib:Path", "StrategyKind")),
        ("other", texts.no_such_kind("strategy", "other", "support.local_steps_settings:LOCAL_STEPS", "StrategyKind")),
        (
            "gone",
            texts.kind_fails_to_load(
                "strategy", "gone", "nowhere.at.all:KIND", ImportError("No module named 'nowhere'")
            ),
        ),
    ],
)
def test_a_strategy_that_cannot_be_used_says_why(name: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        STRATEGIES.named(name)
    assert words in str(caught.value)


def test_a_setting_has_one_meaning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(tmp_path / "site", "shoal.strategies", taken="taken_of_tests:TAKEN")
    (tmp_path / "site" / "taken_of_tests.py").write_text(
        "from shoal.settings.strategy_settings import StrategyKind, StrategySettings\n"
        "class Taken(StrategySettings, frozen=True, kw_only=True):\n"
        "    schedule: str = 'mine'\n"
        "TAKEN = StrategyKind(name='taken', settings=Taken, maker='nowhere:make')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    with pytest.raises(UsageError) as caught:
        STRATEGIES.named("taken")
    assert str(caught.value) == texts.setting_taken("strategy", "taken", "schedule", "AllReduceSettings")
