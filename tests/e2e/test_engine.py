"""The embedded engine and registry, for real: they start, answer, and leave nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from envspec import engine, registry
from envspec.console import Console
from envspec.daemon import processes
from envspec.engine import Engine, Layout

pytestmark = pytest.mark.engine


def layout() -> Layout:
    return engine._layout()


def leftovers(console: Console) -> list[str]:
    """Processes, mounts and bridges of the engine."""
    ours, folders = layout(), (str(layout().run), str(layout().folder))
    found = [
        " ".join(p.argv) for p in processes()
        if p.pid != os.getpid() and any(f"{folder}/" in a for a in p.argv for folder in folders)
    ]
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    found += [p for p in points if any(f"{p}/".startswith(f"{folder}/") for folder in folders)]
    return found + [name for name in links(console) if name == ours.bridge]


def links(console: Console) -> list[str]:
    """Names of this machine's network interfaces."""
    return [link["ifname"] for link in json.loads(engine._ip(console, "-json", "link", "show"))]


def kill_dockerd() -> int:
    """SIGKILL for dockerd alone: its containerd stays."""
    daemon = layout().daemon()
    pid = daemon.pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until = time.monotonic() + 30
    while daemon.pid() is not None:
        assert time.monotonic() < until
        time.sleep(0.05)
    return pid


def test_answers(running: Engine) -> None:
    assert running.embedded
    with closing(running.client(timeout=60)) as client:
        assert client.ping()
        info, version = client.info(), client.version()
    assert info["DockerRootDir"] == str(layout().data)
    assert engine.unfit(version["ApiVersion"], info["DriverStatus"]) is None


def test_plugins(running: Engine) -> None:
    assert running.plugin("buildx")
    assert running.plugin("compose")


def test_status(running: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(engine.CHOICE_VARIABLE, "embedded")
    found = engine.status()
    assert (found.kind, found.host) == ("embedded", running.host)
    assert found.version and found.buildx and found.compose


def test_second_start_reuses(running: Engine, console: Console) -> None:
    pid = layout().daemon().pid()
    assert pid is not None
    assert engine.start(console) == running
    assert layout().daemon().pid() == pid


def test_connect_finds_it_by_our_own_docker_host(
    running: Engine, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(engine.CHOICE_VARIABLE, raising=False)
    monkeypatch.setenv("DOCKER_HOST", running.host)
    assert engine.connect(console).embedded


def test_shell_env_makes_plain_docker_work(running: Engine) -> None:
    script = engine.shell_env(running) + (
        "command -v docker && docker version --format '{{.Server.Version}}' && docker buildx ls"
    )
    done = subprocess.run(
        ["sh", "-euc", script], env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"},
        capture_output=True, text=True, check=False,
    )
    assert done.returncode == 0, done.stderr
    where, version, *_ = done.stdout.splitlines()
    assert where == running.docker
    with closing(running.client(timeout=60)) as client:
        assert version == client.version()["Version"]


@pytest.mark.skipif(not shutil.which("iptables-save"), reason="iptables-save tells")
def test_writes_no_firewall_rules(running: Engine) -> None:
    done = subprocess.run(["iptables-save"], capture_output=True, text=True, check=False)
    assert layout().bridge not in done.stdout


def test_registry_answers(cache: Path, console: Console) -> None:
    name = registry.ensure(console)
    assert name == f"localhost:{registry.port()}"
    with httpx.Client(trust_env=False, timeout=30) as client:
        assert client.get(f"http://127.0.0.1:{registry.port()}/v2/").status_code == 200
    pid = registry._daemon().pid()
    assert registry.ensure(console) == name
    assert registry._daemon().pid() == pid
    assert registry.status().running


def test_registry_stops(cache: Path, console: Console) -> None:
    registry.ensure(console)
    registry.stop(console)
    assert not registry.status().running
    registry.ensure(console)
    assert registry.status().running


def test_start_after_sigkill(running: Engine, console: Console) -> None:
    killed = kill_dockerd()
    again = engine.start(console)
    assert layout().daemon().pid() not in (None, killed)
    with closing(again.client(timeout=60)) as client:
        assert client.ping()


def test_stop_leaves_nothing(running: Engine, console: Console) -> None:
    # What it looks for is there while the engine runs.
    assert layout().bridge in leftovers(console)
    with closing(running.client(timeout=60)) as client:
        network = client.networks.create("envspec-test")
    bridge = f"br-{network.id[:12]}"
    assert bridge in links(console)
    engine.stop(console)
    assert leftovers(console) == []
    assert bridge not in links(console)
    assert not layout().run.exists()
    assert layout().data.exists()
    engine.stop(console)
    # The network is of the data, which stays; it works again.
    with closing(engine.start(console).client(timeout=60)) as client:
        client.networks.get(network.id).remove()


def test_stop_after_sigkill_leaves_nothing(running: Engine, console: Console) -> None:
    kill_dockerd()
    engine.stop(console)
    assert leftovers(console) == []
