"""Downloads from a server of our own: whole and verified, or not there at all."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from envspec import fetch
from envspec.console import Console
from envspec.errors import IntegrityError, UnavailableError
from envspec.lock import Artifact

DATA = b"wheel " * 1000


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "PAUSES", (0, 0))


@pytest.fixture
def wheel(server, artifact) -> Artifact:
    server.answers["/a"] = [(200, DATA)]
    return artifact("a", DATA, url=f"{server.url}/a")


def files(cache: Path) -> list[Path]:
    return [p for p in cache.rglob("*") if p.is_file()]


def test_good(wheel: Artifact, cache: Path, console: Console) -> None:
    assert fetch.missing([wheel]) == [wheel]
    paths = fetch.fetch([wheel], console)
    path = paths[wheel.sha256]
    assert path.read_bytes() == DATA
    assert path.name == wheel.filename
    assert path.stat().st_mode & 0o777 == 0o644
    assert files(cache) == [path]
    assert fetch.missing([wheel]) == []


def test_second_call_needs_no_server(server, wheel: Artifact, console: Console) -> None:
    fetch.fetch([wheel], console)
    server.close()
    assert fetch.fetch([wheel], console)[wheel.sha256].read_bytes() == DATA
    assert server.asked == ["/a"]


def test_same_file_twice_is_asked_for_once(server, wheel: Artifact, console: Console) -> None:
    fetch.fetch([wheel, wheel], console)
    assert server.asked == ["/a"]


def test_wrong_hash_leaves_nothing(server, wheel: Artifact, cache: Path, console: Console) -> None:
    server.answers["/a"] = [(200, b"x" + DATA)]
    with pytest.raises(IntegrityError) as caught:
        fetch.fetch([wheel], console)
    assert caught.value.where == wheel.url
    assert wheel.sha256 in (caught.value.why or "")
    assert hashlib.sha256(b"x" + DATA).hexdigest() in (caught.value.why or "")
    assert files(cache) == []
    assert server.asked == ["/a"]


def test_503_is_asked_thrice(server, wheel: Artifact, cache: Path, console: Console) -> None:
    server.answers["/a"] = [(503, b"")]
    with pytest.raises(UnavailableError) as caught:
        fetch.fetch([wheel], console)
    assert "HTTP 503" in (caught.value.why or "")
    assert server.asked == ["/a"] * 3
    assert files(cache) == []


@pytest.mark.parametrize("status", [500, 503, 429])
def test_recovers(server, wheel: Artifact, console: Console, status: int) -> None:
    server.answers["/a"] = [(status, b""), (status, b""), (200, DATA)]
    assert fetch.fetch([wheel], console)[wheel.sha256].read_bytes() == DATA


def test_404_is_asked_once(server, wheel: Artifact, cache: Path, console: Console) -> None:
    server.answers["/a"] = [(404, b"")]
    with pytest.raises(UnavailableError) as caught:
        fetch.fetch([wheel], console)
    assert "HTTP 404" in (caught.value.why or "")
    assert caught.value.where == wheel.url
    assert server.asked == ["/a"]
    assert files(cache) == []


def test_broken_off_body(server, wheel: Artifact, cache: Path, console: Console) -> None:
    server.broken.add("/a")
    with pytest.raises(UnavailableError):
        fetch.fetch([wheel], console)
    assert server.asked == ["/a"] * 3
    assert files(cache) == []


def test_nobody_listens(server, wheel: Artifact, console: Console) -> None:
    server.close()
    with pytest.raises(UnavailableError):
        fetch.fetch([wheel], console)


def test_one_bad_file_among_good_ones(server, artifact, cache: Path, console: Console) -> None:
    wheels = []
    for n in range(12):
        data = b"%d" % n
        server.answers[f"/{n}"] = [(200 if n != 5 else 404, data)]
        wheels.append(artifact(f"p{n}", data, url=f"{server.url}/{n}"))
    with pytest.raises(UnavailableError, match="p5"):
        fetch.fetch(wheels, console)
    # What was fetched stays; whole files only.
    for path in files(cache):
        assert path.parent.name == hashlib.sha256(path.read_bytes()).hexdigest()
