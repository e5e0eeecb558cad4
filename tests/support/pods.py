"""Pods on one machine: containers of rendered documents as processes, as near to a cluster's as this gets. Needs root.

A pod has an address (a network namespace), mounts at the paths that the document names, the user, group and variables
that it asks for, and the coordinator's Service as a name in /etc/hosts. Files of a Secret belong to root and to the
pod's group, as the kubelet leaves them. Not here: images (a pod sees this machine's programs), schedulers, controllers,
limits on memory and processors, seccomp.
"""

from __future__ import annotations

import base64
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from support.network import Network

# Arguments: lines for /etc/hosts, how many parents are overlaid, those, how many folders are opened to all, those, how
# many mounts, those as pairs, then the command.
ENTER = """
set -e
mount -t tmpfs -o mode=755 tmpfs /mnt
hosts=$1; count=$2; shift 2
while [ "$count" -gt 0 ]; do
    mkdir -p "/mnt/$count/up" "/mnt/$count/work"
    mount -t overlay overlay -o "lowerdir=$1,upperdir=/mnt/$count/up,workdir=/mnt/$count/work" "$1"
    count=$((count - 1)); shift
done
count=$1; shift
while [ "$count" -gt 0 ]; do chmod a+rx "$1"; count=$((count - 1)); shift; done
echo "$hosts" >> /etc/hosts
count=$1; shift
while [ "$count" -gt 0 ]; do mkdir -p "$2"; mount --bind "$1" "$2"; count=$((count - 1)); shift 2; done
exec "$@"
"""
MOUNTED_BELOW = ("/etc", "/opt", "/run", "/var/lib")  # folders below which documents mount, and that a pod may change


class Pods:
    """Runs pods of one set of documents, each on a machine of `network`. The Service leads to the first machine."""

    def __init__(self, documents: Sequence[Mapping[str, Any]], network: Network, folder: Path) -> None:
        self._documents = {(each["kind"], each["metadata"]["name"]): each for each in documents}
        self._network = network
        self._folder = folder
        self._numbers = count()
        (service,) = (each["metadata"]["name"] for each in documents if each["kind"] == "Service")
        self._hosts = f"{network.host(0)} {service}"

        self.secrets: dict[str, Mapping[str, str]] = {}  # that are in the cluster already

    def start(self, job: str, machine: int) -> subprocess.Popen[str]:
        """Run the init containers of a Job's pod to their end, and start its container."""
        pod = self._documents["Job", job]["spec"]["template"]["spec"]
        volumes = self._volumes(pod, self._folder / f"pod-{next(self._numbers)}")
        for container in pod["initContainers"]:
            done = self._run(pod, container, volumes, machine)
            said, _ = done.communicate(timeout=60)
            assert done.returncode == 0, said
        (container,) = pod["containers"]
        return self._run(pod, container, volumes, machine)

    def _volumes(self, pod: Mapping[str, Any], folder: Path) -> dict[str, Path]:
        group = pod["securityContext"]["fsGroup"]
        made = {}
        for volume in pod["volumes"]:
            path = made[volume["name"]] = folder / volume["name"]
            if claim := volume.get("persistentVolumeClaim"):
                path = made[volume["name"]] = self._folder / "claims" / claim["claimName"]
            path.mkdir(parents=True, exist_ok=True)
            os.chown(path, 0, group)
            path.chmod(0o2777)
            if secret := volume.get("secret"):
                data = self._documents["Secret", secret["secretName"]]["stringData"]
                self._put(
                    path, {name: text.encode() for name, text in data.items()}, group, secret["defaultMode"] | 0o440
                )
            if brought := volume.get("configMap"):
                content = contents(self._documents["ConfigMap", brought["name"]])
                self._put(path, {item["path"]: content[item["key"]] for item in brought["items"]}, group, 0o644)
        return made

    def _put(self, folder: Path, files: Mapping[str, bytes], group: int, mode: int) -> None:
        for name, content in files.items():
            (folder / name).write_bytes(content)
            os.chown(folder / name, 0, group)
            (folder / name).chmod(mode)

    def _run(
        self, pod: Mapping[str, Any], container: Mapping[str, Any], volumes: Mapping[str, Path], machine: int
    ) -> subprocess.Popen[str]:
        mounts = [(str(volumes[each["name"]]), each["mountPath"]) for each in container["volumeMounts"]]
        variables: dict[str, str] = {}
        for each in container.get("envFrom", ()):
            variables |= self.secrets[each["secretRef"]["name"]]
        variables |= {each["name"]: each["value"] for each in container["env"]}
        words = [expanded(word, variables) for word in (*container["command"], *container.get("args", ()))]
        user = pod["securityContext"]
        private = [str(path) for path in Path(sys.base_prefix).parents if not path.stat().st_mode & 0o001]
        overlaid = [*MOUNTED_BELOW, *private]
        command = [
            *("ip", "netns", "exec", self._network.namespaces[machine], "unshare", "--mount", "sh", "-c", ENTER, "sh"),
            *(self._hosts, str(len(overlaid)), *overlaid, str(len(private)), *private),
            *(str(len(mounts)), *(path for pair in mounts for path in pair)),
            *(
                "setpriv",
                f"--reuid={user['runAsUser']}",
                f"--regid={user['runAsGroup']}",
                f"--groups={user['fsGroup']}",
            ),
            *("--no-new-privs", "--bounding-set=-all", "env", "-i"),
            *(f"{name}={value}" for name, value in variables.items()),
            *(f"PATH={Path(sys.executable).parent}:/usr/bin:/bin", *words),
        ]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._network.processes.append(process)
        return process


def contents(config_map: Mapping[str, Any]) -> dict[str, bytes]:
    binary = {name: base64.b64decode(text) for name, text in config_map.get("binaryData", {}).items()}
    return {**{name: text.encode() for name, text in config_map.get("data", {}).items()}, **binary}


def expanded(word: str, variables: Mapping[str, str]) -> str:
    """A word of a container's command line, as Kubernetes hands it on: $(NAME) is replaced, $$ stands for $."""

    def replaced(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else variables.get(found[1], found[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", replaced, word)
