"""The container engine: a Docker that is here, or an embedded one on a private socket.

The embedded engine is Debian's dockerd with a configuration, data, socket and bridge of its own.
It never writes firewall rules: two dockerds would take each other's. So its containers have no
way out, and what needs the network (a build's RUN lines) asks for the host's:
``docker build --network host``.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import re
import shlex
import shutil
import subprocess
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import requests
from docker import DockerClient
from docker.errors import APIError, DockerException, NotFound

from envspec import debian, disk
from envspec.console import Console
from envspec.daemon import Daemon, Process, end, processes, with_descendants
from envspec.errors import EngineError
from envspec.paths import cache_dir

CHOICE_VARIABLE = "ENVSPEC_ENGINE"
CHOICES = ("auto", "host", "embedded")
#: Docker 25: the first whose containerd image store loads OCI archives.
MIN_API = (1, 44)
SNAPSHOTTER = "io.containerd.snapshotter.v1"
READY_TIMEOUT = 30.0
PROBE_TIMEOUT = 10
#: Networks of all embedded engines. Each takes a /22, cut into /26.
POOL = ipaddress.IPv4Network("10.213.0.0/16")
POOL_PREFIX, NETWORK_PREFIX = 22, 26
#: A unix socket's path may have 107 bytes; the longest one that dockerd makes below its
#: exec root is containerd/containerd.sock.ttrpc.
SOCKET_LIMIT = 107
LONGEST_SOCKET = "containerd/containerd.sock.ttrpc"
#: What an existing session of another Docker may have set, and must not reach ours.
TLS_VARIABLES = ("DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH")

Plugin = Literal["buildx", "compose"]


@dataclass(frozen=True)
class Engine:
    """A Docker that answers.

    ``host`` is a DOCKER_HOST URL, ``docker`` the path of the command-line client (empty when
    there is none), ``env`` what has to be added to the environment for that client.
    """

    host: str
    docker: str
    env: dict[str, str] = field(default_factory=dict)
    embedded: bool = False

    def client(self, timeout: int = 600) -> DockerClient:
        """A client of the API; ``timeout`` in seconds is for each answer. Close it."""
        return DockerClient.from_env(
            environment={**os.environ, **self.env}, timeout=timeout,
            use_ssh_client=self.host.startswith("ssh://"),
        )

    def cli(self, *args: str | Path) -> list[str]:
        """A ``docker`` command; run it with ``environ()``.

        Raises:
            EngineError: there is no such client.
        """
        if not self.docker:
            raise EngineError(
                "the Docker engine answers, but its command-line client is not here",
                where="docker, on PATH",
                remedy="install docker-cli and docker-buildx, or set "
                f"{CHOICE_VARIABLE}=embedded to use our own beside it",
            )
        return [self.docker, *map(str, args)]

    def environ(self) -> dict[str, str]:
        """The whole environment for ``cli()``."""
        return {**os.environ, **self.env}

    def plugin(self, name: Plugin) -> str:
        """Version of buildx or Compose.

        Raises:
            EngineError: this client does not have it.
        """
        done = subprocess.run(
            self.cli(name, "version"), env=self.environ(), capture_output=True, text=True,
            check=False,
        )
        if done.returncode:
            raise EngineError(
                f"docker has no {name}", where=self.docker, why=done.stderr.strip(),
                remedy=f"install docker-{name}-plugin (Docker's packages) or docker-{name} "
                f"(Debian's), or set {CHOICE_VARIABLE}=embedded to use our own beside it",
            )
        version = re.search(r"\d+\.\d+\S*", done.stdout)
        return version[0] if version else done.stdout.strip()


@dataclass(frozen=True)
class Status:
    """``disk_used`` is in bytes; of an engine on the host, what its images take."""

    kind: Literal["host", "embedded", "none"]
    host: str = ""
    version: str = ""
    buildx: str = ""
    compose: str = ""
    data_root: str = ""
    disk_used: int = 0


@dataclass(frozen=True)
class Layout:
    """Where the embedded engine of one cache directory keeps what it has."""

    folder: Path

    @property
    def id(self) -> str:
        return hashlib.sha256(os.fsencode(self.folder)).hexdigest()[:6]

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def run(self) -> Path:
        """Sockets and run-time state. Outside of the cache when its path is too long."""
        run = self.folder / "run"
        if len(os.fsencode(run / LONGEST_SOCKET)) <= SOCKET_LIMIT:
            return run
        return Path("/run") / f"envspec-{self.id}"

    @property
    def url(self) -> str:
        return f"unix://{self.run}/docker.sock"

    @property
    def bridge(self) -> str:
        return f"es-{self.id}"

    def pool(self, taken: set[str]) -> ipaddress.IPv4Network:
        """The /22 for this engine's networks: picked by the path, but none with an address in
        ``taken``, which another cache directory's engine has.
        """
        pools = list(POOL.subnets(new_prefix=POOL_PREFIX))
        first = int(self.id, 16) % len(pools)
        for pool in pools[first:] + pools[:first]:
            if not any(ipaddress.IPv4Address(address) in pool for address in taken):
                return pool
        raise EngineError(
            "no network is free for the embedded engine", where=str(POOL),
            remedy="stop embedded engines that are not needed: "
            "`ENVSPEC_CACHE=... python build.py engine stop`",
        )

    def config(self, pool: ipaddress.IPv4Network) -> dict[str, Any]:
        """dockerd's configuration file."""
        return {
            "features": {"containerd-snapshotter": True},
            "data-root": str(self.data),
            "exec-root": str(self.run),
            "pidfile": str(self.run / "dockerd.pid"),
            "hosts": [self.url],
            "bridge": self.bridge,
            "default-address-pools": [{"base": str(pool), "size": NETWORK_PREFIX}],
            "iptables": False,
            "ip6tables": False,
            "ip-forward": False,
            "ip-masq": False,
        }

    def daemon(self) -> Daemon:
        program, config = cache_dir() / "tools/usr/sbin/dockerd", self.folder / "daemon.json"
        argv = (str(program), "--config-file", str(config))
        return Daemon(argv, config, self.folder / "dockerd.log")


def connect(console: Console) -> Engine:
    """The engine to use: $DOCKER_HOST, a Docker on its usual socket, else the embedded one.

    ``ENVSPEC_ENGINE`` (``host`` or ``embedded``) overrules the order.

    Raises:
        EngineError: none answers and none can be started, or it lacks what is needed.
        UnavailableError, IntegrityError: Debian's packages can't be had.
    """
    engine = _on_host()
    if engine:
        _check(engine)
        return engine
    return start(console)


def start(console: Console) -> Engine:
    """Start the embedded engine unless it runs.

    Raises:
        EngineError: not root, or dockerd does not start.
        UnavailableError, IntegrityError: Debian's packages can't be had.
    """
    layout = _layout()
    engine, daemon = _embedded(layout), layout.daemon()
    if daemon.pid() and _answers(engine):
        return engine
    if os.geteuid():
        raise EngineError(
            "no Docker answers, and the embedded engine needs root",
            why="\n".join(_silent_sockets()) or None,
            remedy="install Docker 25 or newer (rootless works too) and start it, name one that "
            "runs elsewhere by DOCKER_HOST, join the group docker if one runs here, or run this "
            "with sudo",
        )
    prefix = debian.tools(console)
    with daemon.locked():
        running = daemon.pid() is not None
        if not running:
            _clean(layout, console)
            _write_configs(layout, prefix, console)
            daemon.spawn(_daemon_env(prefix))
        try:
            daemon.wait_ready(lambda: _answers(engine), READY_TIMEOUT)
        except EngineError:
            if not running:
                daemon.stop()
                _clean(layout, console)
            raise
        if not running:
            console.say(f"   embedded Docker started on {engine.host}")
    return engine


def stop(console: Console) -> None:
    """Stop the embedded engine, its containers first; images and build cache stay.

    Leaves no process, mount or network of ours, also after a crash of dockerd.

    Raises:
        EngineError: something of it can't be removed.
    """
    layout = _layout()
    daemon = layout.daemon()
    if not layout.folder.exists():
        return
    with daemon.locked():
        running = daemon.pid() is not None
        if running:
            with suppress(DockerException, requests.RequestException):
                _remove_containers(_embedded(layout))
            daemon.stop()
        _clean(layout, console)
        if running:
            console.say("   embedded Docker stopped")


def running() -> Engine:
    """What ``connect`` would use, without starting it."""
    return _on_host() or _embedded(_layout())


def status() -> Status:
    """What ``connect`` would use, without starting anything."""
    layout = _layout()
    try:
        engine = _on_host() or _embedded(layout)
    except EngineError:
        return Status("none")
    if engine.embedded and not (layout.daemon().pid() and _answers(engine)):
        return Status("none", data_root=str(layout.data), disk_used=disk.used(layout.data))
    with closing(engine.client()) as client:
        info, version = client.info(), client.version()["Version"]
        size = disk.used(layout.data) if engine.embedded else int(client.df()["LayersSize"] or 0)
    return Status(
        kind="embedded" if engine.embedded else "host",
        host=engine.host,
        version=version,
        buildx=_plugin_or_nothing(engine, "buildx"),
        compose=_plugin_or_nothing(engine, "compose"),
        data_root=info["DockerRootDir"],
        disk_used=size,
    )


def shell_env(engine: Engine) -> str:
    """Lines for a shell's ``eval``, after which plain ``docker`` talks to this engine."""
    lines = []
    for name, value in sorted(engine.env.items()):
        if name == "PATH":
            lines.append(f"export PATH={shlex.quote(str(Path(engine.docker).parent))}:\"$PATH\"")
        else:
            lines.append(f"export {name}={shlex.quote(value)}")
    return "\n".join(lines) + "\n"


def _layout() -> Layout:
    # Resolved, because the kernel's list of mounts is.
    return Layout((cache_dir() / "engine").resolve())


# ── A Docker that is here ─────────────────────────────────────────────────────────────────────────


def _on_host() -> Engine | None:
    """The host's Docker that is to be used, None when it is the embedded one's turn."""
    choice = os.environ.get(CHOICE_VARIABLE) or "auto"
    if choice not in CHOICES:
        raise EngineError(
            f"{choice!r} is not a choice of engine", where=CHOICE_VARIABLE,
            remedy=f"set it to one of {', '.join(CHOICES)}, or unset it",
        )
    explicit = os.environ.get("DOCKER_HOST")
    # `engine env` sets DOCKER_HOST to our own.
    if choice == "embedded" or explicit == _layout().url:
        return None
    if explicit:
        engine = _host_engine(explicit)
        if not _answers(engine):
            raise EngineError(
                "the Docker named by DOCKER_HOST does not answer", where=explicit,
                remedy="start it, correct DOCKER_HOST, or unset it: then a Docker on its usual "
                "socket is used, or the embedded one",
            )
        return engine
    for path in default_sockets():
        engine = _host_engine(f"unix://{path}")
        if path.is_socket() and _answers(engine):
            return engine
    if choice == "host":
        raise EngineError(
            "no Docker answers on this machine",
            where=", ".join(map(str, default_sockets())),
            why="\n".join(_silent_sockets()) or None,
            remedy=f"start it, set DOCKER_HOST, or unset {CHOICE_VARIABLE}",
        )
    return None


def default_sockets() -> list[Path]:
    """Where Docker listens when nobody says otherwise: as root, and rootless."""
    found = [Path("/var/run/docker.sock")]
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        found.append(Path(runtime) / "docker.sock")
    return found


def _silent_sockets() -> list[str]:
    return [
        f"{path} is there but " + ("does not answer" if os.access(path, os.W_OK)
                                   else "this user may not use it")
        for path in default_sockets() if path.is_socket()
    ]


def _host_engine(host: str) -> Engine:
    # A builder that runs in a container of its own would keep its images to itself.
    env = {"DOCKER_HOST": host, "BUILDX_BUILDER": "default"}
    return Engine(host, shutil.which("docker") or "", env)


def _answers(engine: Engine) -> bool:
    try:
        with closing(engine.client(timeout=PROBE_TIMEOUT)) as client:
            return bool(client.ping())
    except (DockerException, requests.RequestException, OSError):
        return False


def _check(engine: Engine) -> None:
    with closing(engine.client(timeout=60)) as client:
        info, version = client.info(), client.version()
    if problem := unfit(version["ApiVersion"], info.get("DriverStatus")):
        raise EngineError(
            "this Docker can't load our images unchanged", where=engine.host,
            why=problem,
            remedy='with Docker 25 or newer, put {"features": {"containerd-snapshotter": true}} '
            "into /etc/docker/daemon.json and restart it (images pulled before are then hidden); "
            f"or set {CHOICE_VARIABLE}=embedded to use our own beside it",
        )


def unfit(api: str, driver_status: list[list[str]] | None) -> str | None:
    """Why a Docker with this API version and ``docker info`` DriverStatus can't be used."""
    if tuple(int(part) for part in api.split(".")) < MIN_API:
        needed = ".".join(map(str, MIN_API))
        return f"its API is {api}; {needed} (Docker 25) or newer is needed"
    if not any(SNAPSHOTTER in pair for pair in driver_status or []):
        return (
            "it does not use the containerd image store, without which a loaded image gets "
            "another digest"
        )
    return None


# ── The embedded one ──────────────────────────────────────────────────────────────────────────────


def _embedded(layout: Layout) -> Engine:
    bin_folder = cache_dir() / "tools/usr/bin"
    env = {
        "DOCKER_HOST": layout.url,
        "DOCKER_CONFIG": str(layout.folder / "config"),
        "BUILDX_BUILDER": "default",
        "PATH": f"{bin_folder}:{os.environ.get('PATH', os.defpath)}",
        **{name: "" for name in TLS_VARIABLES if name in os.environ},
    }
    return Engine(layout.url, str(bin_folder / "docker"), env, embedded=True)


def _daemon_env(prefix: Path) -> dict[str, str]:
    """The caller's environment, proxies and CA bundle too, without what would redirect dockerd."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("DOCKER_", "NOTIFY_"))}
    # A user's PATH often lacks sbin, where dockerd looks for ip, modprobe and mkfs.
    system = "/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"
    env["PATH"] = f"{prefix}/usr/bin:{prefix}/usr/sbin:{env.get('PATH', os.defpath)}:{system}"
    return env


def _write_configs(layout: Layout, prefix: Path, console: Console) -> None:
    for folder in (layout.run, layout.data):
        folder.mkdir(mode=0o711, parents=True, exist_ok=True)
    pool = layout.pool({address for _, address in _addresses(console)})
    network = next(pool.subnets(new_prefix=NETWORK_PREFIX))
    address = f"{network[1]}/{NETWORK_PREFIX}"
    for words in (
        ("link", "add", "name", layout.bridge, "type", "bridge"),
        ("address", "add", address, "dev", layout.bridge),
        ("link", "set", layout.bridge, "up"),
    ):
        _ip(console, *words)
    layout.daemon().config.write_text(json.dumps(layout.config(pool), indent=2) + "\n")
    client = layout.folder / "config/config.json"
    client.parent.mkdir(exist_ok=True)
    # `docker login` writes into the same file.
    known = json.loads(client.read_text()) if client.exists() else {}
    known["cliPluginsExtraDirs"] = [str(prefix / "usr/libexec/docker/cli-plugins")]
    client.write_text(json.dumps(known, indent=2) + "\n")
    client.chmod(0o600)


def _remove_containers(engine: Engine) -> None:
    with closing(engine.client(timeout=60)) as client:
        for container in client.containers.list(all=True, ignore_removed=True):
            with suppress(NotFound, APIError):
                container.remove(force=True)


def _clean(layout: Layout, console: Console) -> None:
    """Take away what a dockerd that is gone left: processes, mounts, networks, run-time state.

    Left over, dockerd's and containerd's pid files alone could hinder the next start: they may
    name a stranger by now.
    """
    table = [p for p in processes() if p.pid != os.getpid()]
    ours = [p for p in table if _is_leftover(p, layout)]
    # With dockerd gone there is nothing to shut down in order; a container ends with its init.
    end(with_descendants(ours, table), grace=0)
    for point in reversed(mounts_below(layout, Path("/proc/self/mountinfo").read_text())):
        console.run(["umount", "--lazy", point], error=EngineError,
                    what="a mount of the embedded engine can't be removed",
                    remedy=f"umount {shlex.quote(point)}")
    for name in _bridges(layout, console):
        _ip(console, "link", "delete", name)
    if layout.run.exists():
        shutil.rmtree(layout.run)


def _is_leftover(process: Process, layout: Layout) -> bool:
    """Whether it is containerd, a shim or runc with one of our paths on its command line."""
    if not process.program.startswith(("containerd", "runc", "docker-proxy")):
        return False
    ours = (f"{layout.run}/", f"{layout.data}/")
    return any(part.removeprefix("unix://").startswith(ours) for part in process.argv[1:])


def mounts_below(layout: Layout, mountinfo: str) -> list[str]:
    """Mount points of the engine in the text of /proc/self/mountinfo, in order of mounting.

    dockerd mounts its data folder on itself, and a killed one leaves that too. A disk that
    somebody mounted there is not ours.
    """
    data, found = str(layout.data), []
    for line in mountinfo.splitlines():
        root, point = (
            re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), text)
            for text in line.split()[3:5]
        )
        on_itself = point == data and data.endswith(root)
        if on_itself or point.startswith((f"{layout.run}/", f"{data}/")):
            found.append(point)
    return found


def _ip(console: Console, *words: str) -> str:
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    return console.run(
        [shutil.which("ip", path=path) or "ip", *words], error=EngineError,
        what="the embedded engine's network can't be set up",
        remedy="apt-get install iproute2; the engine needs the right to make a network bridge: "
        "in a container, run that container with --privileged",
    )


def _addresses(console: Console) -> list[tuple[str, str]]:
    """(interface, IPv4 address) of this machine."""
    links = json.loads(_ip(console, "-json", "-4", "address", "show") or "[]")
    return [(link["ifname"], a["local"]) for link in links for a in link.get("addr_info", ())]


def _bridges(layout: Layout, console: Console) -> list[str]:
    """Our bridge, and those of networks that were made in our engine (by Compose mostly)."""
    config = layout.daemon().config
    names = {link["ifname"] for link in json.loads(_ip(console, "-json", "link", "show"))}
    found = {layout.bridge} & names
    with suppress(FileNotFoundError, ValueError, LookupError):
        pool = json.loads(config.read_text())["default-address-pools"][0]["base"]
        network = ipaddress.IPv4Network(pool)
        found |= {
            name for name, address in _addresses(console)
            if name.startswith("br-") and ipaddress.IPv4Address(address) in network
        }
    return sorted(found)


def _plugin_or_nothing(engine: Engine, name: Plugin) -> str:
    try:
        return engine.plugin(name)
    except EngineError:
        return ""
