"""The engine's layout, choices and clean-up lists; tests/e2e/test_engine.py runs a real one."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path

import pytest

from envspec import engine
from envspec.console import Console
from envspec.daemon import Process
from envspec.engine import LONGEST_SOCKET, POOL, SOCKET_LIMIT, Engine, Layout
from envspec.errors import EngineError


def test_pool_is_stable_and_inside() -> None:
    layout = Layout(Path("/x/engine"))
    pool = layout.pool(set())
    assert pool == Layout(Path("/x/engine")).pool({"192.168.0.1", "172.17.0.1"})
    assert pool.subnet_of(POOL)
    assert pool.prefixlen == engine.POOL_PREFIX


def test_pool_avoids_what_is_taken() -> None:
    layout = Layout(Path("/x/engine"))
    first = layout.pool(set())
    second = layout.pool({str(first[70])})
    assert second != first
    assert layout.pool({str(first[1]), str(second[1])}) not in (first, second)
    free = ipaddress.IPv4Network("10.213.252.0/22")
    taken = {str(p[1]) for p in POOL.subnets(new_prefix=engine.POOL_PREFIX) if p != free}
    assert layout.pool(taken) == free
    with pytest.raises(EngineError, match="no network is free"):
        layout.pool({*taken, str(free[1])})


@pytest.mark.parametrize("over", [0, 1])
def test_socket_limit(over: int) -> None:
    longest = SOCKET_LIMIT - len(f"/run/{LONGEST_SOCKET}") + over
    folder = Path("/" + "é" * 10 + "x" * (longest - 21))
    layout = Layout(folder)
    assert layout.run == (Path(f"/run/envspec-{layout.id}") if over else folder / "run")
    assert len(os.fsencode(layout.run / LONGEST_SOCKET)) <= SOCKET_LIMIT
    assert layout.url == f"unix://{layout.run}/docker.sock"


def test_two_caches_share_nothing() -> None:
    a, b = Layout(Path("/a/engine")), Layout(Path("/b/engine"))
    assert a.bridge != b.bridge
    assert len(a.bridge) <= 15  # IFNAMSIZ
    assert a.daemon().config != b.daemon().config


def test_config_touches_no_firewall() -> None:
    layout = Layout(Path("/x/engine"))
    config = layout.config(ipaddress.IPv4Network("10.213.4.0/22"))
    for key in ("iptables", "ip6tables", "ip-forward", "ip-masq"):
        assert config[key] is False
    assert config["features"] == {"containerd-snapshotter": True}
    assert config["hosts"] == [layout.url]
    assert config["bridge"] == layout.bridge
    for key in ("data-root", "exec-root", "pidfile"):
        assert config[key].startswith("/x/engine/")
    assert config["default-address-pools"] == [{"base": "10.213.4.0/22", "size": 26}]


def test_daemon_is_named_by_its_configuration(cache: Path) -> None:
    daemon = Layout(cache / "engine").daemon()
    assert daemon.argv == (
        str(cache / "tools/usr/sbin/dockerd"), "--config-file", str(cache / "engine/daemon.json")
    )


def test_mounts_below() -> None:
    layout = Layout(Path("/x y/engine"))
    text = (
        "1 0 8:1 / / rw - ext4 /dev/sda rw\n"
        "2 1 0:4 / /x\\040y/engine/data/a rw - overlay overlay rw\n"
        "3 2 0:4 / /x\\040y/engine/data/a/b rw - tmpfs tmpfs rw\n"
        "4 1 0:4 / /x\\040y/engine/run/netns/n rw - nsfs nsfs rw\n"
        "5 1 0:4 / /x\\040y/engine2/data/a rw - overlay overlay rw\n"
        "6 1 0:4 / /x\\040y/engine rw - overlay overlay rw\n"
    )
    ours = ["/x y/engine/data/a", "/x y/engine/data/a/b", "/x y/engine/run/netns/n"]
    assert engine.mounts_below(layout, text) == ours
    # dockerd mounts its data on itself; a disk or another folder there is somebody else's.
    for root in ("/x\\040y/engine/data", "/engine/data"):
        line = f"0 1 8:1 {root} /x\\040y/engine/data rw - ext4 /dev/sda rw\n"
        assert engine.mounts_below(layout, line + text) == ["/x y/engine/data", *ours]
    for root in ("/", "/big"):
        line = f"0 1 8:1 {root} /x\\040y/engine/data rw - ext4 /dev/sda rw\n"
        assert engine.mounts_below(layout, line + text) == ours


@pytest.mark.parametrize(
    ("argv", "ours"),
    [
        (("/t/containerd", "--config", "/x/engine/run/containerd/containerd.toml"), True),
        (("/t/containerd-shim-runc-v2", "-address", "unix:///x/engine/run/c.sock"), True),
        (("/t/containerd", "--config", "/etc/containerd/config.toml"), False),
        (("/t/containerd", "--config", "/x/engine2/run/c.toml"), False),
        (("/usr/bin/less", "/x/engine/data/log"), False),
        ((), False),
    ],
)
def test_leftovers(argv: tuple[str, ...], ours: bool) -> None:
    assert engine._is_leftover(Process(9, 1, argv), Layout(Path("/x/engine"))) is ours


@pytest.mark.parametrize(
    ("api", "status", "problem"),
    [
        ("1.44", [["driver-type", engine.SNAPSHOTTER]], None),
        ("1.100", [["driver-type", engine.SNAPSHOTTER]], None),
        ("1.43", [["driver-type", engine.SNAPSHOTTER]], "1.44"),
        ("1.9", [["driver-type", engine.SNAPSHOTTER]], "1.44"),
        ("1.50", [["Backing Filesystem", "extfs"]], "containerd image store"),
        ("1.50", None, "containerd image store"),
    ],
)
def test_unfit(api: str, status: list[list[str]] | None, problem: str | None) -> None:
    found = engine.unfit(api, status)
    assert (found is None) if problem is None else (problem in (found or ""))


def test_shell_env_quotes() -> None:
    found = Engine(
        "unix:///a b/docker.sock", "/a b/bin/docker",
        {"DOCKER_HOST": "unix:///a b/docker.sock", "PATH": "/a b/bin:/bin"},
    )
    assert engine.shell_env(found) == (
        "export DOCKER_HOST='unix:///a b/docker.sock'\nexport PATH='/a b/bin':\"$PATH\"\n"
    )


def test_wrong_choice(monkeypatch: pytest.MonkeyPatch, console: Console) -> None:
    monkeypatch.setenv("ENVSPEC_ENGINE", "podman")
    with pytest.raises(EngineError) as caught:
        engine.connect(console)
    assert caught.value.where == "ENVSPEC_ENGINE"
    assert "embedded" in caught.value.remedy


def test_docker_host_that_is_silent(
    monkeypatch: pytest.MonkeyPatch, console: Console, tmp_path: Path
) -> None:
    monkeypatch.delenv("ENVSPEC_ENGINE", raising=False)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    with pytest.raises(EngineError, match="DOCKER_HOST does not answer"):
        engine.connect(console)


def test_embedded_engine_needs_root(
    monkeypatch: pytest.MonkeyPatch, console: Console
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(EngineError, match="needs root"):
        engine.start(console)


def test_no_client() -> None:
    with pytest.raises(EngineError, match="command-line client"):
        Engine("unix:///x", "").cli("version")
    assert Engine("unix:///x", "/d").cli("run", Path("/x")) == ["/d", "run", "/x"]


def test_stop_of_what_never_ran(console: Console, cache: Path) -> None:
    engine.stop(console)
    assert not cache.exists()
