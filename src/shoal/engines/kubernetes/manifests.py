"""The documents that run a job on a Kubernetes cluster: values in, documents out. Pure.

One Job runs `shoal coordinator`, a Service gives it a name, and an indexed Job runs one `shoal join` per worker. The
token is in a Secret and nowhere else: pods read it from a file. Written for Kubernetes 1.31 and newer. Not here: values
and their checks (`cluster_job`), YAML (`yaml_text`).
"""

from __future__ import annotations

import base64
import signal
from collections.abc import Mapping

from shoal.engines.kubernetes.cluster_job import WHOLE_FILE_NAME, ClusterJob
from shoal.errors import AddressUnavailable, Refused, ShoalError, UsageError, all_errors

Document = Mapping[str, object]

PORT = 7000  # where the coordinator listens
USER = 1000  # number of the user and group in every pod
TOKEN_FILE = "/run/shoal/token"  # noqa: S105  a path
SECRET_FOLDER = "/etc/shoal"  # noqa: S105  a path
SCRIPT_FOLDER = "/opt/shoal/script"
RUNS = "/var/lib/shoal"  # the folder with the run directory
SCRIPT_KEY = "script"
WAIT_SECONDS = 600  # that a worker waits for the coordinator's pod
WORKER_RETRIES = 10  # of one worker's place; lost nodes and evictions do not count
COORDINATOR_RETRIES = 6  # where its decisions outlive its pod
# A Secret's files belong to root, and readable by the group where pods have one, whatever mode they are given. Shoal
# takes only a token's file that is its user's own, so each pod begins with a private copy, in memory.
COPY_TOKEN = f"umask 077 && cat {SECRET_FOLDER}/token > {TOKEN_FILE}"
COORDINATOR, WORKER = "coordinator", "worker"  # components, and names of containers


def render(job: ClusterJob, token: str) -> list[Document]:
    """All documents, in the order in which they should be made."""
    made: list[Document] = [_secret(job, token)]
    if job.script.content is not None:
        made.append(_script(job, job.script.content))
    return [*made, _service(job), _coordinator(job), _workers(job)]


def script_path(job: ClusterJob) -> str:
    """The script's path in pods."""
    return job.script.path if job.script.content is None else f"{SCRIPT_FOLDER}/{_file_name(job)}"


def escaped(word: str) -> str:
    """A word that Kubernetes, which replaces $(NAME) in command lines, hands on as it was."""
    return word.replace("$", "$$")


# What is made once


def _secret(job: ClusterJob, token: str) -> Document:
    head = _head(job, "v1", "Secret", f"{job.name}-token")
    return {**head, "type": "Opaque", "immutable": True, "stringData": {"token": token}}


def _script(job: ClusterJob, content: bytes) -> Document:
    made = {**_head(job, "v1", "ConfigMap", f"{job.name}-script"), "immutable": True}
    try:
        return {**made, "data": {SCRIPT_KEY: content.decode("utf-8")}}
    except UnicodeDecodeError:
        return {**made, "binaryData": {SCRIPT_KEY: base64.b64encode(content).decode("ascii")}}


def _service(job: ClusterJob) -> Document:
    """The coordinator's name leads to its pod; nothing stands in between."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": _labels(job, COORDINATOR),
        "ports": [{"name": COORDINATOR, "port": PORT, "targetPort": PORT, "protocol": "TCP"}],
    }
    return {**_head(job, "v1", "Service", f"{job.name}-{COORDINATOR}", COORDINATOR), "spec": spec}


# Jobs


def _coordinator(job: ClusterJob) -> Document:
    """A coordinator that died is replaced where its decisions are on a volume; one that ended the job is not."""
    command = ["shoal", "coordinator", f"--address=0.0.0.0:{PORT}", f"--token-file={TOKEN_FILE}"]
    command += [f"--run-dir={_run_dir(job)}", *job.settings, "--", script_path(job), *job.script.arguments]
    container = {
        **_container(job, COORDINATOR, command),
        "ports": [{"name": COORDINATOR, "containerPort": PORT, "protocol": "TCP"}],
        "resources": {"requests": {"cpu": "250m", "memory": "512Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}},
    }
    spec: dict[str, object] = {
        "completions": 1,
        "parallelism": 1,
        "backoffLimit": COORDINATOR_RETRIES if job.place.claim else 0,
        "ttlSecondsAfterFinished": job.upkeep.keep,
        "template": {
            "metadata": {
                "labels": _labels(job, COORDINATOR),
                "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"},
            },
            "spec": _pod(job, container),
        },
    }
    if job.place.claim:
        spec["podFailurePolicy"] = {
            "rules": [_on_exit(COORDINATOR, "FailJob", _codes_of_ended_jobs()), _on_disruption()]
        }
    return {**_head(job, "batch/v1", "Job", f"{job.name}-{COORDINATOR}", COORDINATOR), "spec": spec}


def _workers(job: ClusterJob) -> Document:
    """A worker that died is replaced. One worker that ends with 0 says that the job is done for all of them."""
    threads = job.threads or job.resources.threads
    command = ["shoal", "join", f"{job.name}-{COORDINATOR}:{PORT}", f"--token-file={TOKEN_FILE}"]
    command += [f"--threads={threads}", f"--wait={WAIT_SECONDS}"]
    amounts = {"cpu": job.resources.cpu, "memory": job.resources.memory}
    if job.resources.gpus:
        amounts["nvidia.com/gpu"] = str(job.resources.gpus)
    container = {**_container(job, WORKER, command), "resources": {"requests": amounts, "limits": amounts}}
    spec = {
        "completionMode": "Indexed",
        "completions": job.workers,
        "parallelism": job.workers,
        "backoffLimitPerIndex": WORKER_RETRIES,
        "podFailurePolicy": {
            "rules": [
                _on_disruption(),
                _on_exit(WORKER, "FailJob", [AddressUnavailable.exit_code]),
                _on_exit(WORKER, "FailIndex", [UsageError.exit_code, Refused.exit_code]),
            ]
        },
        "successPolicy": {"rules": [{"succeededCount": 1}]},
        "ttlSecondsAfterFinished": job.upkeep.keep,
        "template": {"metadata": {"labels": _labels(job, WORKER)}, "spec": _pod(job, container)},
    }
    return {**_head(job, "batch/v1", "Job", f"{job.name}-workers", WORKER), "spec": spec}


def _on_disruption() -> Document:
    """The cluster took the pod away, for another one or with its node: the next one is no further attempt."""
    return {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}


def _on_exit(container: str, action: str, codes: list[int]) -> Document:
    return {"action": action, "onExitCodes": {"containerName": container, "operator": "In", "values": codes}}


def _codes_of_ended_jobs() -> list[int]:
    """With which a coordinator has ended its job: another one could only say so again.

    Not 2, which may mean that the run directory is still locked on a node that was lost, nor 70, a fault of Shoal's.
    """
    codes = {error.exit_code for error in all_errors()} - {UsageError.exit_code, ShoalError.exit_code}
    return sorted({*codes, 128 + signal.SIGTERM})


# Pods


def _pod(job: ClusterJob, container: Mapping[str, object]) -> Document:
    spec: dict[str, object] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": job.upkeep.grace,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "shareProcessNamespace": True,  # process 1 is then one that reaps orphans, and no signal is lost at a start
        "securityContext": {
            "runAsNonRoot": True,
            **dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), USER),
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "initContainers": [_copy_token(job)],
        "containers": [container],
        "volumes": _volumes(job),
    }
    if job.upkeep.service_account:
        spec["serviceAccountName"] = job.upkeep.service_account
    return spec


def _copy_token(job: ClusterJob) -> Document:
    amounts = {"cpu": "100m", "memory": "64Mi"}
    return {
        **_plain_container(job, "token", ["sh", "-c", COPY_TOKEN]),
        "resources": {"requests": amounts, "limits": amounts},
        "volumeMounts": [
            {"name": "secret", "mountPath": SECRET_FOLDER, "readOnly": True},
            {"name": "token", "mountPath": TOKEN_FILE.rpartition("/")[0]},
        ],
    }


def _container(job: ClusterJob, name: str, command: list[str]) -> dict[str, object]:
    mounts: list[Document] = [
        {"name": "token", "mountPath": TOKEN_FILE.rpartition("/")[0], "readOnly": True},
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108  of the pod
    ]
    if job.script.content is not None:
        mounts.append({"name": "script", "mountPath": SCRIPT_FOLDER, "readOnly": True})
    mounts.append({"name": "runs", "mountPath": RUNS})
    made = {**_plain_container(job, name, command), "volumeMounts": mounts}
    if job.upkeep.secret:
        made["envFrom"] = [{"secretRef": {"name": job.upkeep.secret}}]
    return made


def _plain_container(job: ClusterJob, name: str, command: list[str]) -> dict[str, object]:
    # The image need not know the user by name, nor have a home for it.
    variables = {"PYTHONUNBUFFERED": "1", "HOME": "/tmp", "USER": "shoal"}  # noqa: S108  of the pod
    return {
        "name": name,
        "image": job.image,
        "command": [escaped(word) for word in command],
        "env": [{"name": variable, "value": value} for variable, value in variables.items()],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }


def _volumes(job: ClusterJob) -> list[Document]:
    volumes: list[Document] = [
        {"name": "secret", "secret": {"secretName": f"{job.name}-token", "defaultMode": 0o400}},
        {"name": "token", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]
    if job.script.content is not None:
        items = [{"key": SCRIPT_KEY, "path": _file_name(job)}]
        volumes.append({"name": "script", "configMap": {"name": f"{job.name}-script", "items": items}})
    claim = {"persistentVolumeClaim": {"claimName": job.place.claim}} if job.place.claim else {"emptyDir": {}}
    return [*volumes, {"name": "runs", **claim}]


# Names


def _head(job: ClusterJob, version: str, kind: str, name: str, component: str = "") -> dict[str, object]:
    metadata: dict[str, object] = {"name": name, "labels": _labels(job, component)}
    if job.namespace:
        metadata["namespace"] = job.namespace
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def _labels(job: ClusterJob, component: str = "") -> dict[str, str]:
    labels = {"app.kubernetes.io/name": "shoal", "app.kubernetes.io/instance": job.name}
    return {**labels, "app.kubernetes.io/component": component} if component else labels


def _run_dir(job: ClusterJob) -> str:
    return "/".join((RUNS, *((job.place.folder,) if job.place.folder else ()), job.run))


def _file_name(job: ClusterJob) -> str:
    name = job.script.path.rpartition("/")[2]
    return name if WHOLE_FILE_NAME.fullmatch(name) else "script.py"
