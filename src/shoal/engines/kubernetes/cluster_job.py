"""A job as Kubernetes needs it described: values, and checks of what a user says about them. Pure.

A mistake raises a `UsageError` that names the option, its value and what to write instead. Not here: the documents that
follow from these values (`manifests`), and Shoal's own settings, which come as words of a command line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from shoal.engines.kubernetes import texts
from shoal.errors import UsageError

MOST_NAME = 50  # characters: the longest name made from it, NAME-workers-9999, is a host's name, of 63 at most
MOST_OBJECT_NAME = 253  # characters of the name of something that is in the cluster already
MOST_SCRIPT = 1024 * 1024  # bytes of a ConfigMap
LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
CLAIM = "claim:"
LOCAL = ("file://", "local://", "memory://")  # places that one pod has for itself
WHOLE_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class WorkerResources:
    """What each worker's pod gets."""

    cpu: str = "2"  # cores, as Kubernetes writes them: 4, 1.5, 500m
    memory: str = "8Gi"
    gpus: int = 0

    @property
    def threads(self) -> int:
        """For torch: a pod sees all cores of its node, whatever it may use of them."""
        cores = float(self.cpu[:-1]) / 1000 if self.cpu.endswith("m") else float(self.cpu)
        return max(1, int(cores))

    def check(self) -> None:
        if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,3})?|[0-9]{1,9}m", self.cpu) or not re.search("[1-9]", self.cpu):
            raise UsageError(texts.bad_cpu(self.cpu))
        if not re.fullmatch(r"[0-9]{1,15}([kMGT]|[KMGT]i)?", self.memory) or not re.search("[1-9]", self.memory):
            raise UsageError(texts.bad_memory(self.memory))
        if not 0 <= self.gpus <= 64:
            raise UsageError(texts.not_between("gpus", self.gpus, 0, 64))


@dataclass(frozen=True)
class PodScript:
    """The job's script: brought in a ConfigMap, or a part of the image."""

    path: str  # in the image; for one that is brought, the file's name
    content: bytes | None = None  # None: it is in the image
    arguments: tuple[str, ...] = ()

    def check(self) -> None:
        if self.content is None and not re.fullmatch(r"/[^\0]*[^\0/]", self.path):
            raise UsageError(texts.not_in_the_image(self.path))
        if self.content is not None and len(self.content) > MOST_SCRIPT:
            raise UsageError(texts.script_too_large(self.path, len(self.content), MOST_SCRIPT))
        check_text(self.path, *self.arguments)


@dataclass(frozen=True)
class SharedPlace:
    """Where checkpoints go, and the job's record with them where that is a volume."""

    url: str = ""  # of an object store
    claim: str = ""  # name of a volume claim
    folder: str = ""  # on that volume

    @property
    def is_there(self) -> bool:
        return bool(self.url or self.claim)


@dataclass(frozen=True)
class Upkeep:
    """How pods are run and cleared away."""

    grace: int = 120  # seconds from SIGTERM to SIGKILL: a worker hands over at the end of a step
    keep: int = 86400  # seconds that finished Jobs and their logs stay
    secret: str = ""  # name of a Secret whose entries become variables, such as an object store's keys
    service_account: str = ""

    def check(self) -> None:
        for option, seconds, most in (("grace", self.grace, 86400), ("keep", self.keep, 10**9)):
            if not 1 <= seconds <= most:
                raise UsageError(texts.not_between(option, seconds, 1, most))
        for option, name in (("env-from", self.secret), ("service-account", self.service_account)):
            if name:
                check_object_name(option, name)


@dataclass(frozen=True)
class ClusterJob:
    name: str  # begins the names of all objects
    namespace: str  # empty: the one that kubectl is set to
    image: str
    run: str  # name of the run directory; differs from one rendering to the next
    workers: int  # the most
    settings: tuple[str, ...]  # options of `shoal coordinator`: words of a command line
    script: PodScript
    place: SharedPlace
    threads: int = 0  # of each worker; 0: as many as it has cores
    resources: WorkerResources = WorkerResources()
    upkeep: Upkeep = Upkeep()

    def checked(self) -> ClusterJob:
        check_label("name", self.name, MOST_NAME)
        if self.namespace:
            check_label("namespace", self.namespace, 63)
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,500}", self.image):
            raise UsageError(texts.bad_image(self.image))
        check_text(*self.settings)
        for part in (self.script, self.resources, self.upkeep):
            part.check()
        return self


def name_from(script: str) -> str:
    """A name for the job, from that of its script."""
    stem = re.sub(r"\.py$", "", script.rstrip("/").rpartition("/")[2])
    name = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")
    name = re.sub(r"^[0-9-]+", "", name)[:MOST_NAME].strip("-")
    if not name:
        raise UsageError(texts.no_name_in(script))
    return name


def check_label(option: str, name: str, longest: int) -> None:
    if len(name) > longest or not LABEL.fullmatch(name):
        raise UsageError(texts.bad_name(option, name, longest))


def check_object_name(option: str, name: str) -> None:
    if len(name) > MOST_OBJECT_NAME or not OBJECT_NAME.fullmatch(name):
        raise UsageError(texts.bad_name(option, name, MOST_OBJECT_NAME))


def check_text(*words: str) -> None:
    for word in words:
        if any(0xD800 <= ord(character) <= 0xDFFF for character in word):  # bytes of a command line that are no text
            raise UsageError(texts.no_plain_text(word))


def shared_place(text: str) -> SharedPlace:
    """What --checkpoint-to means for pods: a URL, or `claim:NAME/FOLDER`. Empty: nothing."""
    if not text:
        return SharedPlace()
    if text.startswith(CLAIM):
        claim, *parts = text.removeprefix(CLAIM).split("/")
        is_name = len(claim) <= MOST_OBJECT_NAME and OBJECT_NAME.fullmatch(claim)
        if not is_name or not all(WHOLE_FILE_NAME.fullmatch(part) for part in parts):
            raise UsageError(texts.bad_claim(text))
        return SharedPlace(claim=claim, folder="/".join(parts))
    if "://" not in text or text.startswith(LOCAL):
        raise UsageError(texts.no_shared_folder(text))
    return SharedPlace(url=text)
