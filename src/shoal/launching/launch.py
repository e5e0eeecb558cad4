"""`shoal run` for Python: the same names, the same checks, the same exit codes; for scripts and for functions."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from shoal.disk.resuming import after_requeue, recorded_job, resumed_settings
from shoal.disk.settings_merge import merge
from shoal.environment import worker_environment
from shoal.errors import UsageError
from shoal.job_config import JobConfig
from shoal.launching import texts
from shoal.launching.from_python.job_result import JobResult
from shoal.launching.from_python.travelling import Travelling, name_of, travelling
from shoal.launching.run_job import check_job, check_places, run_job

Program = str | os.PathLike[str] | Callable[..., object]


def launch(
    train: Program,
    *script_arguments: str,
    arguments: Mapping[str, object] | None = None,
    config: str | os.PathLike[str] | None = None,
    **options: object,
) -> JobResult:
    """Run a job as `shoal run` would, and return how it ended and what it left behind.

    `train` is the path of a script, followed by its arguments: `launch("train.py", "--lr", "0.1", workers=4)`; or a
    function that takes a `Run`, and `arguments` by name: `launch(train, arguments={"lr": 0.1}, workers=4)`. Options are
    the settings of `shoal run` in Python's spelling.

    A mistake in them raises `UsageError`. A job that fails does not raise: see `JobResult.check`.

    `launch("", resume="runs/one")` goes on with a job: an empty script means the recorded one with its arguments.
    """
    merged = _settings(config, options)
    with _as_script(train, script_arguments, arguments, merged) as job:
        ended = run_job(merged, job.script, job.arguments, private_files=job.private_files)
    finish = ended.finish
    return JobResult(
        finish.exit_code, ended.run_dir, finish.text if finish.exit_code else "", finish.error, merged.checkpoint_to
    )


def check_launch(
    function: Callable[..., object],
    *,
    arguments: Mapping[str, object],
    config: str | os.PathLike[str] | None = None,
    **options: object,
) -> None:
    """Raise what `launch` would raise for a function before it starts anything: for callers who have work to do first.

    Arguments that are not known yet may be given as anything that has the same name.
    """
    merged = _settings(config, options)
    with _as_script(function, (), arguments, merged) as job:
        check_places(merged)
        check_job(merged, job.script, job.arguments)


def _settings(file: str | os.PathLike[str] | None, options: Mapping[str, object]) -> JobConfig:
    if (environment := worker_environment()) is not None:
        raise UsageError(texts.launch_in_worker(environment.worker))
    given = {name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in options.items()}
    merged_over = partial(merge, given, file=None if file is None else os.fspath(file), origin="shoal.launch()")
    merged = after_requeue(merged_over())
    return resumed_settings(merged, lambda base: merged_over(base=base)) if merged.resume else merged


def _as_script(
    train: Program, texts_given: tuple[str, ...], named: Mapping[str, object] | None, config: JobConfig
) -> contextlib.AbstractContextManager[Travelling]:
    """What workers run: a script with arguments, while the context lasts."""
    if isinstance(train, str | os.PathLike):
        script = os.fspath(train)
        if named is not None:
            raise UsageError(texts.arguments_of_script(script))
        if config.resume and not script:
            return contextlib.nullcontext(Travelling(*recorded_job(Path(config.run_dir))))
        return contextlib.nullcontext(Travelling(script, texts_given))
    if not callable(train):
        raise UsageError(texts.no_program(train))
    if texts_given:
        raise UsageError(texts.text_for_function(name_of(train), texts_given[0]))
    return travelling(train, named or {})
