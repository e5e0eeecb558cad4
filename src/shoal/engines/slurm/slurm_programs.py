"""Slurm's own programs: where they are, and the short questions that they answer."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

from shoal.engines import texts
from shoal.errors import UsageError, printable

ASK_SECONDS = 30.0  # for an answer


def find_program(name: str) -> str:
    if (found := shutil.which(name)) is None:
        raise UsageError(texts.no_slurm_program(name))
    return found


def node_names(node_list: str) -> tuple[str, ...]:
    """`node[1-2]` is node1 and node2."""
    return tuple(_answer("scontrol", "show", "hostnames", node_list))


def node_addresses(nodes: Sequence[str] = ()) -> dict[str, str]:
    """Addresses by node, where Slurm reaches them; of all nodes if none are named."""
    chosen = (f"--nodes={','.join(nodes)}",) if nodes else ()
    rows = (line.split() for line in _answer("sinfo", "--all", "--noheader", "--Node", *chosen, "--format=%N %o"))
    return {row[0]: row[1] for row in rows if len(row) == 2}


def is_preempted(job: str) -> bool:
    """Whether Slurm takes the nodes of a batch job away for another one, and would start it again later."""
    said = " ".join(_answer("scontrol", "--oneliner", "show", "job", job)).split()
    facts = dict(word.split("=", 1) for word in said if "=" in word)
    has_time = facts.get("PreemptTime", "None") not in ("None", "Unknown")
    return has_time and facts.get("JobState") == "RUNNING" and facts.get("BatchFlag") == facts.get("Requeue") == "1"


def requeue(job: str) -> None:
    """Slurm ends the job, with all its processes, and puts it back into its queue."""
    _answer("scontrol", "requeue", job)


def _answer(program: str, *words: str) -> list[str]:
    try:
        done = subprocess.run(
            (find_program(program), *words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ASK_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(texts.slurm_does_not_answer(program, str(error))) from None
    if done.returncode != 0:
        raise UsageError(texts.slurm_does_not_answer(program, error_line(done.stderr.splitlines())))
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def error_line(lines: Sequence[str]) -> str:
    """The last line that contains `error`; otherwise the last line that is not empty."""
    said = [printable(line.strip()) for line in lines if line.strip()]
    errors = [line for line in said if "error" in line]
    return (errors or said or ["nothing"])[-1]
