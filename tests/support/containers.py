"""Images built by buildah without a daemon, and containers that a compose file describes, made of namespaces.

A container has the image's files as a read-only root, its own processes and mounts, the network that the compose file
describes, and the user and capabilities that image and compose file give it. Needs root and Linux.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.support.service_process import eventually

ROOT = Path(__file__).parents[2]
BASE = ROOT / ".venv-images" / "base"
_BASE_IMAGE = "localhost/python-base"
_BUILD_S = 240
_STEP_S = 60
_VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")
_PID_1 = Path(__file__).with_name("container_init.py")


def run(*line: str | Path, environment: Mapping[str, str] | None = None, timeout_s: float = _STEP_S) -> str:
    """Run a command that must succeed, and return its output without surrounding space."""
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, line))}\n{done.stdout}{done.stderr}"
    return done.stdout.strip()


@dataclass(frozen=True, slots=True)
class Image:
    """A built image: its files, and its configuration as `docker inspect` shows it."""

    tree: Path
    config: dict[str, Any]


class ImageBuilder:
    """Builds images from Containerfiles into a store of its own; `close` removes them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._environment = {"PATH": os.environ["PATH"], "HOME": str(directory), "BUILDAH_ISOLATION": "chroot"}
        self._environment |= {"STORAGE_DRIVER": _storage_driver(directory), "BUILDAH_FORMAT": "docker"}
        empty = self._buildah("from", "scratch")
        self._buildah("copy", "--quiet", empty, str(BASE), "/")
        self._buildah("commit", "--quiet", "--rm", empty, _BASE_IMAGE)

    def build(self, containerfile: Path, context: Path, wheels: Path, version: str) -> Image:
        """Build an image whose packages come from the directory `wheels`, and return it."""
        name = f"localhost/{containerfile.stem}"
        line = ["build", "--quiet", "--pull-never", "--build-arg", f"PYTHON_IMAGE={_BASE_IMAGE}"]
        line += ["--build-arg", f"VERSION={version}", "--volume", f"{wheels}:/wheels:ro"]
        self._buildah(*line, "--file", str(containerfile), "--tag", name, str(context))
        inspected = json.loads(self._buildah("inspect", "--type", "image", name))
        container = self._buildah("from", "--pull-never", name)
        return Image(Path(self._buildah("mount", container)), inspected["Docker"]["config"])

    def close(self) -> None:
        """Unmount and remove everything that was built."""
        self._buildah("rm", "--all")
        subprocess.run(["umount", str(self._directory / "store" / "overlay")], capture_output=True, check=False)
        shutil.rmtree(self._directory)

    def _buildah(self, *arguments: str) -> str:
        place = ("--root", str(self._directory / "store"), "--runroot", str(self._directory / "run"))
        return run("buildah", *place, *arguments, environment=self._environment, timeout_s=_BUILD_S)


def _storage_driver(directory: Path) -> str:
    """How buildah stores layers there: overlays, but not on an overlay, which is what containers have."""
    is_overlay = run("stat", "--file-system", "--format=%T", str(directory)).strip() == "overlayfs"
    return "vfs" if is_overlay else "overlay"


def load_compose(path: Path) -> dict[str, Any]:
    """Read a compose file, with the defaults of its variables."""
    text = _VARIABLE.sub(lambda found: found[2], path.read_text(encoding="utf-8"))
    loaded: dict[str, Any] = yaml.safe_load(text)
    return loaded


class Network:
    """Network namespaces by name: `attach` connects them by a bridge, as containers of one network."""

    def __init__(self, stack: ExitStack, prefix: str) -> None:
        self._stack = stack
        self._prefix = prefix
        self._bridge = self.namespace("bridge")
        self._ip(self._bridge, "link add br0 type bridge", "link set br0 up")
        self._ports = 0

    def namespace(self, name: str) -> str:
        """Make a namespace, and return its full name; it is removed with the stack."""
        full = f"{self._prefix}-{name}"
        run("ip", "netns", "add", full)
        self._stack.callback(subprocess.run, ["ip", "netns", "del", full], capture_output=True, check=False)
        self._ip(full, "link set lo up")
        return full

    def attach(self, namespace: str, address: str) -> None:
        """Connect a namespace to the bridge, with an address such as 10.0.0.1/24."""
        self._ports += 1
        port = f"port{self._ports}"
        self._ip(self._bridge, f"link add {port} type veth peer name eth0 netns {namespace}")
        self._ip(self._bridge, f"link set {port} master br0", f"link set {port} up")
        self._ip(namespace, f"addr add {address} dev eth0", "link set eth0 up")

    def ip(self, namespace: str, *lines: str) -> None:
        """Run lines of `ip` in a namespace."""
        self._ip(namespace, *lines)

    @staticmethod
    def _ip(namespace: str, *lines: str) -> None:
        for line in lines:
            run("ip", "-n", namespace, *line.split())


class Container:
    """A running container of a compose file's service."""

    def __init__(
        self, image: Image, service: Mapping[str, Any], *, namespace: str, folder: Path, volumes: Path, log: Path
    ) -> None:
        self._image = image
        self._service = service
        self._namespace = namespace
        self.log = log
        user = str(service.get("user") or image.config["User"])
        self.uid = int(user.partition(":")[0])
        for name, value in service.get("sysctls", {}).items():
            path = Path("/proc/sys") / name.replace(".", "/")
            run("nsenter", f"--net=/run/netns/{namespace}", "sh", "-c", f"echo {value} > {path}")
        words = [*image.config["Entrypoint"], *(service.get("command") or image.config["Cmd"])]
        specification = {
            "root": str(image.tree),
            "mounts": self._mounts(folder, volumes),
            "tmpfs": service.get("tmpfs", []),
            "uid": self.uid,
            "gid": int(user.partition(":")[2] or self.uid),
            "capabilities": service.get("cap_add", []),
            "words": words,
            "environment": self._environment,
        }
        line = ["nsenter", f"--net=/run/netns/{namespace}", "unshare", "--mount", "--pid", "--fork", "--kill-child"]
        with log.open("wb") as output:
            self._child = subprocess.Popen(
                [*line, sys.executable, str(_PID_1), json.dumps(specification)], stdout=output, stderr=output
            )

    @property
    def _environment(self) -> dict[str, str]:
        pairs = (variable.partition("=") for variable in self._image.config["Env"])
        given: dict[str, str] = self._service.get("environment", {})
        return {name: value for name, _, value in pairs} | given

    def _mounts(self, folder: Path, volumes: Path) -> list[tuple[str, str, bool]]:
        """Source, target and whether it is read-only, of each volume; a new one belongs to the image's owner."""
        mounts = []
        for text in self._service.get("volumes", []):
            source, target, *mode = text.split(":")
            path = (folder / source).resolve() if source[0] == "." else self._volume(volumes / source, target)
            mounts.append((str(path), target, mode == ["ro"]))
        mounted = [target for _, target, _ in mounts]
        for target in self._image.config.get("Volumes") or {}:
            if target not in mounted:
                mounts.append((str(self._volume(volumes / self._namespace, target)), target, False))
        return mounts

    def _volume(self, path: Path, target: str) -> Path:
        owner = (self._image.tree / target.lstrip("/")).stat()
        path.mkdir(parents=True, exist_ok=True)
        os.chown(path, owner.st_uid, owner.st_gid)
        path.chmod(owner.st_mode & 0o777)
        return path

    @property
    def pid(self) -> int:
        """The process id of its first process, seen from outside."""
        assert self._child.poll() is None, f"the container has ended:\n{self.log.read_text()}"
        children = Path(f"/proc/{self._child.pid}/task/{self._child.pid}/children")
        return int(eventually(lambda: children.read_text().split())[0])

    def execute(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command inside the container, as its user: what `exec` and health checks do."""
        enter = ["nsenter", "--target", str(self.pid), "--mount", "--pid", "--net", "--root", "--wd"]
        enter += ["--setuid", str(self.uid), "--setgid", str(self.uid)]
        line = [*enter, "--", "env", "-i", *(f"{name}={value}" for name, value in self._environment.items()), *words]
        return subprocess.run(line, capture_output=True, text=True, timeout=_STEP_S, check=False)

    def is_healthy(self) -> bool:
        """Run the health check of the compose file, else that of the image; fails if the container has ended."""
        check = self._service.get("healthcheck", {}).get("test") or self._image.config["Healthcheck"]["Test"]
        assert check[0] == "CMD"
        return self.execute(*check[1:]).returncode == 0

    def stop(self) -> int:
        """Send the image's stop signal, and return the exit code."""
        os.kill(self.pid, signal.Signals[self._image.config["StopSignal"]])
        return self._child.wait(timeout=_STEP_S)

    def kill(self) -> None:
        """End it at once; if it has ended already, nothing."""
        if self._child.poll() is None:
            os.kill(self.pid, signal.SIGKILL)  # `--kill-child` has no effect on a process that changed its user
        self._child.wait(timeout=_STEP_S)


def addresses(service: Mapping[str, Any]) -> Sequence[str]:
    """The fixed addresses of a service, on all its networks."""
    networks = service.get("networks", {}).values()
    return [network["ipv4_address"] for network in networks if "ipv4_address" in network]
