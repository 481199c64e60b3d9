"""The embedded registry: Debian's docker-registry on loopback, the default place to publish to."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

import httpx

from envspec import debian
from envspec.console import Console
from envspec.daemon import Daemon
from envspec.disk import used
from envspec.errors import EngineError
from envspec.paths import cache_dir

PORT_VARIABLE = "ENVSPEC_REGISTRY_PORT"
DEFAULT_PORT = 5005
#: Only loopback: it has no passwords, and Docker takes plain HTTP there without being asked to.
ADDRESS = "127.0.0.1"
READY_TIMEOUT = 30.0

# docs: https://distribution.github.io/distribution/about/configuration/
CONFIG = """\
version: 0.1
log:
  level: info
storage:
  filesystem:
    rootdirectory: "{root}"
  delete:
    enabled: true
http:
  addr: {address}:{port}
"""


@dataclass(frozen=True)
class Status:
    """``disk_used`` is in bytes."""

    running: bool
    name: str
    root: Path
    disk_used: int


def port() -> int:
    """``$ENVSPEC_REGISTRY_PORT``, else 5005.

    Raises:
        EngineError: the variable is not a port number.
    """
    text = os.environ.get(PORT_VARIABLE) or str(DEFAULT_PORT)
    if text.isascii() and text.isdigit() and 0 < int(text) < 65536:
        return int(text)
    raise EngineError(
        f"{text!r} is not a port number", where=PORT_VARIABLE,
        remedy=f"unset it (then {DEFAULT_PORT} is taken) or set a number from 1 to 65535",
    )


def ensure(console: Console) -> str:
    """Start the registry unless it runs.

    Returns:
        Its name in image references: ``localhost:5005``.

    Raises:
        EngineError: the port is taken, or it does not start.
        UnavailableError, IntegrityError: Debian's packages can't be had.
    """
    number = port()
    name = f"localhost:{number}"
    daemon = _daemon()
    config = CONFIG.format(root=_folder() / "data", address=ADDRESS, port=number)
    if _runs_as(daemon, config) and _answers(number):
        return name
    debian.tools(console)
    with daemon.locked():
        running = _runs_as(daemon, config)
        if not running:
            daemon.stop()
            _check_port(number)
            daemon.config.write_text(config)
            # The program takes settings from REGISTRY_* too; they would win.
            daemon.spawn({k: v for k, v in os.environ.items() if not k.startswith("REGISTRY_")})
        try:
            daemon.wait_ready(lambda: _answers(number), READY_TIMEOUT)
        except EngineError:
            daemon.stop()
            raise
        if not running:
            console.say(f"   embedded registry {name} started")
    return name


def stop(console: Console) -> None:
    """Stop the registry; what it holds stays."""
    daemon = _daemon()
    with daemon.locked():
        if daemon.pid():
            daemon.stop()
            console.say("   embedded registry stopped")


def status() -> Status:
    return Status(
        running=_daemon().pid() is not None,
        name=f"localhost:{port()}",
        root=_folder() / "data",
        disk_used=used(_folder() / "data"),
    )


def _folder() -> Path:
    return (cache_dir() / "registry").resolve()


def _daemon() -> Daemon:
    folder = _folder()
    program = cache_dir() / "tools/usr/bin/docker-registry"
    config = folder / "config.yml"
    return Daemon((str(program), "serve", str(config)), config, folder / "registry.log")


def _runs_as(daemon: Daemon, config: str) -> bool:
    """Whether it runs, and with this configuration (the port may be another one by now)."""
    return (
        daemon.pid() is not None and daemon.config.exists() and daemon.config.read_text() == config
    )


def _check_port(number: int) -> None:
    """Tell who else's port it is before our program fails on it less clearly."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ADDRESS, number))
        except OSError as error:
            raise EngineError(
                f"port {number} can't be used for the embedded registry",
                where=f"{ADDRESS}:{number}", why=error.strerror,
                remedy=f"set {PORT_VARIABLE} to a free port, or publish elsewhere by --registry",
            ) from None


def _answers(number: int) -> bool:
    # A proxy of the environment has no business on loopback.
    with httpx.Client(trust_env=False, timeout=5) as client:
        try:
            return client.get(f"http://{ADDRESS}:{number}/v2/").status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False
