"""`shoal manifests`: from a command line to documents, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.cli import texts
from shoal.cli.jobs.coordinator import parser as coordinator_parser
from shoal.cli.jobs.manifests import NOT_FOR_PODS, PLACED, USAGE, WITH_CLAIM
from shoal.cli.main import main
from shoal.cli.options import config_from, settings
from shoal.engines.kubernetes import texts as kubernetes_texts
from shoal.settings import texts as setting_texts

IMAGE = ("--image", "train:1")


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import shoal\n")
    return tmp_path / "train.py"


def rendered(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[list[dict[str, Any]], str]:
    """The documents, and what was said besides."""
    assert main(["manifests", *arguments]) == 0
    captured = capsys.readouterr()
    return list(yaml.safe_load_all(captured.out)), captured.err


def command(documents: list[dict[str, Any]], job: str) -> list[str]:
    [found] = [each for each in documents if each["kind"] == "Job" and each["metadata"]["name"].endswith(job)]
    words: list[str] = found["spec"]["template"]["spec"]["containers"][0]["command"]
    return words


def test_a_job_of_two_to_eight_workers(capsys: pytest.CaptureFixture[str]) -> None:
    documents, said = rendered(capsys, "train.py", "-n", "2:8", *IMAGE)
    assert [each["kind"] for each in documents] == ["Secret", "ConfigMap", "Service", "Job", "Job"]
    assert documents[-1]["spec"]["parallelism"] == 8
    assert "--workers=2:8" in command(documents, "coordinator")
    assert "--checkpoint-every=never" in command(documents, "coordinator")
    assert said == f"shoal: {texts.kept_nowhere(WITH_CLAIM)}\n"


def test_every_rendering_has_a_token_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (rendered(capsys, "train.py", *IMAGE)[0][0]["stringData"]["token"] for _ in range(2))
    assert len(first) == 64
    assert first != second


def test_settings_reach_the_coordinator_as_they_were_given(capsys: pytest.CaptureFixture[str]) -> None:
    given = ("-n", "8", "--seed=7", "--sync-batchnorm", "--no-deterministic", "--schedule", "ring", "--lease", "30")
    places = ("--checkpoint-to", "s3://bucket/runs", "--checkpoint-every", "200", "--keep-checkpoints", "5")
    documents, said = rendered(capsys, *IMAGE, *given, *places, "--threads=3", "train.py", "--", "--epochs", "5")
    words = command(documents, "coordinator")
    parsed = coordinator_parser().parse_all(words[2:])
    config = config_from(parsed)
    assert (config.workers, config.min_workers, config.seed, config.lease) == (8, 0, 7, 30)
    assert (config.sync_batchnorm, config.checkpoint_every, config.keep_checkpoints) == (True, "200", 5)
    assert config.checkpoint_to == "s3://bucket/runs"
    assert {"--no-deterministic", "--schedule=ring"} <= {*words}
    assert (parsed.script, parsed.arguments) == ("/opt/shoal/script/train.py", ["--epochs", "5"])
    assert "--threads=3" in command(documents, "workers")
    assert said == ""


def test_settings_may_stand_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "job.toml").write_text("workers = '2:4'\nseed = 9\n")
    documents, _ = rendered(capsys, "train.py", *IMAGE, "--config", "job.toml", "--checkpoint-every=never")
    assert {"--workers=2:4", "--seed=9"} <= {*command(documents, "coordinator")}


def test_a_script_in_the_image_needs_no_file_here(capsys: pytest.CaptureFixture[str]) -> None:
    documents, _ = rendered(capsys, "/app/absent.py", "--in-image", *IMAGE)
    assert [each["kind"] for each in documents] == ["Secret", "Service", "Job", "Job"]
    assert command(documents, "coordinator")[-1] == "/app/absent.py"
    assert documents[0]["metadata"]["name"] == "absent-token"


def test_the_output_file_is_private_and_replaces_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["manifests", "train.py", *IMAGE, "--output", "job.yaml"]) == 0
    assert (tmp_path / "job.yaml").stat().st_mode & 0o777 == 0o600
    assert len(list(yaml.safe_load_all((tmp_path / "job.yaml").read_text()))) == 5
    assert capsys.readouterr().out == ""
    assert main(["manifests", "train.py", *IMAGE, "--output", "job.yaml"]) == 2
    assert texts.output_there("job.yaml") in capsys.readouterr().err


def test_a_large_script_needs_another_way_to_apply_it(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text("#" * 300_000)
    _, said = rendered(capsys, "train.py", *IMAGE, "--checkpoint-every=never")
    assert said == f"shoal: {texts.too_large_to_remember('train.py', 300_000)}\n"


def test_every_setting_goes_to_pods_or_has_a_reason_not_to() -> None:
    assert {*NOT_FOR_PODS, *PLACED} <= settings().keys()
    assert {"on", "hosts", "nodes", "time", "slurm", "ray", "spark"} <= NOT_FOR_PODS.keys()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("train.py", "-n", "2:8"), texts.no_image(USAGE)),
        ((*IMAGE,), texts.no_script(USAGE)),
        (("trian.py", *IMAGE), "did you mean train.py?"),
        (("train.py", *IMAGE, "-n", "8:2"), setting_texts.bad_min_workers(8, 2)),
        (("train.py", *IMAGE, "--name", "My_Job"), kubernetes_texts.bad_name("name", "My_Job", 50)),
        (("train.py", "--imgae", "train:1"), "did you mean '--image'?"),
        (("train.py", *IMAGE, "5"), texts.behind_dashes("5", "shoal manifests SCRIPT [options] -- 5")),
        (("train.py", *IMAGE, "--spares", "1"), texts.nothing_for_pods("spares", NOT_FOR_PODS["spares"])),
        (("train.py", *IMAGE, "--on", "dask"), texts.nothing_for_pods("on", NOT_FOR_PODS["on"])),
        (
            ("train.py", *IMAGE, "--on", "spark", "--spark", "authenticate.secret=hunter2"),
            texts.nothing_for_pods("on", NOT_FOR_PODS["on"]),
        ),
        (("train.py", *IMAGE, "--checkpoint-every", "20"), kubernetes_texts.nowhere_for_checkpoints("20")),
        (("train.py", *IMAGE, "--checkpoint-to", "runs"), kubernetes_texts.no_shared_folder("runs")),
        (("train.py", *IMAGE, "--in-image"), kubernetes_texts.not_in_the_image("train.py")),
        (
            ("train.py", *IMAGE, "--strategy", "parameter-server", "--servers", "2"),
            texts.no_servers_in_pods("parameter-server"),
        ),
        (("train.py", *IMAGE, "--output", "absent/job.yaml"), "--output absent/job.yaml cannot be made"),
    ],
)
def test_mistakes_are_one_line(arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["manifests", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    [line] = captured.err.splitlines()
    assert said in line


def test_a_script_that_a_config_map_cannot_bring(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text("#" * (1024 * 1024 + 1))
    assert main(["manifests", "train.py", *IMAGE]) == 2
    assert kubernetes_texts.script_too_large("train.py", 1024 * 1024 + 1, 1024 * 1024) in capsys.readouterr().err
    script.write_text("from model import Net\n")
    (script.parent / "model.py").touch()
    assert main(["manifests", "train.py", *IMAGE]) == 2
    assert kubernetes_texts.needs_modules("train.py", "model.py") in capsys.readouterr().err
