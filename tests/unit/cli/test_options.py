"""The command line of `shoal run`: every option is listed here, so that a new one is a visible change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shoal.cli import texts as cli_texts
from shoal.cli.jobs.run import USAGE, parser
from shoal.cli.main import COMMANDS, main
from shoal.cli.options import GROUPS, config_from, settings
from shoal.disk import texts as disk_texts
from shoal.disk.settings_merge import merge
from shoal.errors import UsageError
from shoal.job_config import JobConfig
from shoal.launching import texts
from shoal.settings import texts as setting_texts
from shoal.settings.kinds import OWN_STRATEGIES as OWN
from shoal.settings.kinds import settings_of

# option strings and default, in the order of --help
OPTIONS: list[tuple[tuple[str, ...], object]] = [
    (("-h", "--help"), None),
    (("-n", "--workers"), 1),
    (("--min-workers",), 0),
    (("--spares",), 0),
    (("--threads",), 0),
    (("--on",), "local"),
    (("--hosts",), ""),
    (("--nodes",), ""),
    (("--time",), ""),
    (("--slurm",), ""),
    (("--ray",), ""),
    (("--spark",), ""),
    (("--resize",), "global-batch"),
    (("--strategy",), "all-reduce"),
    (("--seed",), 0),
    (("--sync-batchnorm", "--no-sync-batchnorm"), False),
    (("--digest-every",), 100),
    (("--schedule",), "auto"),
    (("--deterministic", "--no-deterministic"), False),
    (("--carrier",), "shoal"),
    (("--bucket-mb",), 4.0),
    (("--codec",), "identity"),
    (("--servers",), ""),
    (("--servers-token",), ""),
    (("--replicas",), 1),
    (("--consistency",), "synchronous"),
    (("--staleness",), ""),
    (("--staleness-scaling",), "lr"),
    (("--noise",), 0.0),
    (("--normalize", "--no-normalize"), False),
    (("--server-memory",), ""),
    (("--server-limit",), 1.5),
    (("--server-quota",), ""),
    (("--address",), "127.0.0.1:0"),
    (("--plaintext", "--no-plaintext"), False),
    (("--heartbeat-limit",), 5.0),
    (("--hang-limit",), 600.0),
    (("--lease",), 60.0),
    (("--max-failures",), 3),
    (("--chaos",), ""),
    (("--checkpoint-every",), "end"),
    (("--checkpoint-to",), ""),
    (("--keep-checkpoints",), 3),
    (("--resume",), ""),
    (("--run-dir",), ""),
    (("--progress",), "auto"),
    (("--open", "--no-open"), False),
    (("--config",), None),
]


def parse(*arguments: str) -> tuple[JobConfig, str, list[str]]:
    parsed = parser().parse_all(arguments)
    return config_from(parsed), parsed.script, parsed.arguments


def test_every_option_and_its_default() -> None:
    known = settings()
    found = [
        (tuple(action.option_strings), known[action.dest].default if action.dest in known else None)
        for action in parser()._actions
        if action.option_strings
    ]
    assert found == OPTIONS


def test_every_setting_is_in_one_group() -> None:
    of_strategies = [name for kind in settings_of(OWN.values()) for name in kind.names()]
    in_groups = [name for names in GROUPS.values() for name in names]
    assert sorted(in_groups + of_strategies) == sorted(settings())


def test_commands() -> None:
    every = "run join simulate runs show report checkpoints export import servers coordinator server manifests bench"
    assert list(COMMANDS) == every.split()


def test_everything_after_the_script_is_the_scripts() -> None:
    config, script, rest = parse("-n", "2", "train.py", "-n", "9", "--workers=8", "--", "--help", "-h")
    assert (config.workers, script) == (2, "train.py")
    assert rest == ["-n", "9", "--workers=8", "--", "--help", "-h"]


@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        (("-n3",), "workers", 3),
        (("--workers=3", "-n", "3"), "workers", 3),
        (("-n", "2:8"), "workers", 8),
        (("--workers=2:8",), "min_workers", 2),
        (("-n", "8", "--min-workers", "2"), "min_workers", 2),
        (("--sync-batchnorm",), "sync_batchnorm", True),
        (("--no-sync-batchnorm",), "sync_batchnorm", False),
        (("--heartbeat-limit", "2"), "heartbeat_limit", 2.0),
        (("--run-dir", "a b"), "run_dir", "a b"),
        (("--checkpoint-every", "200"), "checkpoint_every", "200"),
        (("--checkpoint-every=30s",), "checkpoint_every", "30s"),
        (("--keep-checkpoints", "5"), "keep_checkpoints", 5),
        (("--open",), "open", True),
    ],
)
def test_values_arrive_typed(arguments: tuple[str, ...], name: str, value: object) -> None:
    config, _, _ = parse(*arguments, "train.py")
    assert getattr(config, name) == value
    assert type(getattr(config, name)) is type(value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--worker", "2", "train.py"), "did you mean '--workers'?"),
        (("--work=2", "train.py"), "there is no option --work;"),
        (("--rundir", "x", "train.py"), "did you mean '--run-dir'?"),
        (("-n", "2", "--workers", "3", "train.py"), cli_texts.given_twice("workers", 2, 3)),
        (("--seed", "1", "--seed", "2", "train.py"), cli_texts.given_twice("seed", 1, 2)),
        (("--sync-batchnorm", "--no-sync-batchnorm", "train.py"), cli_texts.switched_on_and_off("sync-batchnorm")),
        (("-n", "two", "train.py"), setting_texts.bad_workers_range("two")),
        (("-n", "8:2", "train.py"), setting_texts.bad_min_workers(8, 2)),
        (("-n", "2:8", "--min-workers", "3", "train.py"), disk_texts.two_minimums("the command line", "2:8")),
        (("--spares", "few", "train.py"), cli_texts.wrong_kind("spares", "few", "a whole number")),
        (("--bucket-mb", "x", "train.py"), cli_texts.wrong_kind("bucket-mb", "x", "a number")),
        (("-n", "0", "train.py"), setting_texts.bad_workers(0, 10_000)),
        (("-n", "-1", "train.py"), setting_texts.bad_workers(-1, 10_000)),
        (("--schedule", "rings", "train.py"), "did you mean 'ring'?"),
        (("--carrier", "glo", "train.py"), "did you mean 'gloo'?"),
        (
            ("--carrier", "mpi", "--schedule", "ring", "train.py"),
            setting_texts.carrier_has_own_schedules("mpi", "ring", "identity"),
        ),
        (("--address", "nowhere:port", "train.py"), "HOST:PORT"),
        (("--checkpoint-every", "30 s", "train.py"), setting_texts.bad_checkpoint_every("30 s")),
        (("--checkpoint-every", "0", "train.py"), setting_texts.bad_checkpoint_every("0")),
        (("--keep-checkpoints", "0", "train.py"), setting_texts.out_of_range("keep-checkpoints", 0, 1, 1_000_000)),
        (("--keep", "2", "train.py"), "there is no option --keep;"),
        (("--resume", "missing"), disk_texts.no_run("missing", "")),
        (("--strategy", "parameter-server", "train.py"), setting_texts.NO_SERVERS),
        (("--servers", "2", "train.py"), setting_texts.for_parameter_servers("--servers 2", "servers", "all-reduce")),
        (
            ("--strategy", "parameter-server", "--servers=2", "--staleness=-1", "train.py"),
            setting_texts.bad_staleness("-1"),
        ),
        (("-n",), "-n/--workers"),
        ((), cli_texts.no_script(USAGE)),
        (("-n", "2"), cli_texts.no_script(USAGE)),
        (("missing.py",), texts.script_missing("missing.py")),
        (("/",), texts.script_is_no_file("/")),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    [line] = captured.err.splitlines()
    assert line.startswith("shoal: error: ")
    assert words in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("rnu",), "did you mean 'run'?"),
        ((), cli_texts.no_command_given(COMMANDS, "shoal")),
        (("bench", "x"), "training"),
    ],
)
def test_unknown_commands(arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert words in capsys.readouterr().err


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["run", "--help"])
    assert left.value.code == 0
    shown = capsys.readouterr().out
    assert all(name in shown for names, _ in OPTIONS for name in names)
    assert all(title in shown for title in GROUPS)


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("shoal 0.")
    assert main(["--help"]) == 0
    assert "coordinator" in capsys.readouterr().out


def test_command_line_beats_the_file_and_the_file_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text("workers = 3\nseed = 4\nsync_batchnorm = true\n")
    config, _, _ = parse("--config", str(file), "-n", "2", "--no-sync-batchnorm", "train.py")
    assert (config.workers, config.seed, config.sync_batchnorm) == (2, 4, False)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("worker = 3\n", "did you mean 'workers'?"),
        ("workers = 'many'\n", setting_texts.bad_workers_range("many")),
        ("seed = 'many'\n", "job.toml"),
        ("workers = 0\n", setting_texts.bad_workers(0, 10_000)),
        ("workers = \n", "is not TOML"),
    ],
)
def test_mistakes_in_the_file_name_it(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "job.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        parse("--config", str(file), "train.py")
    assert words in str(caught.value)


@pytest.mark.parametrize("options", [{"wrokers": 2}, {"workers": "2-8"}, {"workers": 0}])
def test_python_options_are_checked_like_the_command_lines(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        merge(options, file=None, origin="shoal.launch()")
