"""What unit tests share: a private cache, a small project, a file server."""

from __future__ import annotations

import hashlib
import io
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from envspec.console import Console  # noqa: E402
from envspec.lock import Artifact  # noqa: E402
from envspec.matrix import Project  # noqa: E402

#: Small, but with both kinds of base, an override and a second row to be the nearest.
MATRIX = """\
schema = 1
cutoff = 2026-04-13T00:00:00Z

[targets.cpu]
title = "no GPU"
capabilities = []
rows = ["new", "old"]

[bases.cuda]
kind = "registry"
image = "docker.io/nvidia/cuda"
tag = "12.8.1"
digest = "sha256:{zeros}"

[bases.debian]
kind = "bootstrap"
suite = "trixie"
packages = ["gcc", "bash"]

[[layers]]
name = "torch"
packages = ["torch"]

[[layers]]
name = "rest"
packages = ["*"]

[rows.new]
title = "new"
base = "debian"
python = "3.13"
cuda = "12.8"
min_driver = "570.26"

[rows.new.components.torch]
version = "2.10.0"
source = {{ kind = "index" }}

[rows.new.components.vllm]
version = "0.16.0"
source = {{ kind = "index" }}

[rows.new.targets.cpu]
serves = []

[[rows.new.targets.cpu.overrides]]
requirement = "numpy==2.0"
breaks = "vllm"
reason = "a reason that is long enough"
probe = "import/test_x.py::test_y"

[rows.old]
title = "old"
base = "debian"
python = "3.12"
cuda = "12.8"
min_driver = "570.26"

[rows.old.components.torch]
version = "2.9.1"
source = {{ kind = "index" }}

[rows.old.components.vllm]
version = "0.16.0"
source = {{ kind = "index" }}

[rows.old.targets.cpu]
serves = []
""".format(zeros="0" * 64)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has a cache of its own; none can touch the user's."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("ENVSPEC_CACHE", str(folder))
    return folder


@pytest.fixture
def console() -> Console:
    return Console(stderr=io.StringIO())


@pytest.fixture
def make_project(tmp_path: Path) -> Callable[..., Project]:
    """A project of MATRIX, with texts replaced: ``make_project(("old text", "new text"))``."""

    def make(*changes: tuple[str, str]) -> Project:
        text = MATRIX
        for old, new in changes:
            assert old in text
            text = text.replace(old, new, 1)
        path = tmp_path / "project" / "matrix.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return Project(path)

    return make


@pytest.fixture
def project(make_project: Callable[..., Project]) -> Project:
    return make_project()


class Server:
    """Serves ``answers``, a list of (status, body) for each path; the last one stays."""

    def __init__(self) -> None:
        self.answers: dict[str, list[tuple[int, bytes]]] = {}
        #: Paths whose bodies end before their Content-Length.
        self.broken: set[str] = set()
        self.asked: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                queue = outer.answers.get(self.path) or [(404, b"")]
                status, body = queue.pop(0) if len(queue) > 1 else queue[0]
                self.send_response(status)
                short = self.path in outer.broken
                self.send_header("Content-Length", str(len(body) + 10 * short))
                self.end_headers()
                self.wfile.write(body)
                self.close_connection = True

            def log_message(self, *args: object) -> None:
                pass

        # Not daemon threads: closing then waits for them.
        ThreadingHTTPServer.daemon_threads = False
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    running = Server()
    yield running
    running.close()


@pytest.fixture
def artifact() -> Callable[..., Artifact]:
    def make(
        name: str, data: bytes = b"", *, version: str = "1.0", kind: str = "wheel", url: str = ""
    ) -> Artifact:
        digest = hashlib.sha256(data or name.encode()).hexdigest()
        filename = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
        return Artifact(
            name=name, version=version, kind=kind, filename=filename,  # type: ignore[arg-type]
            url=url or f"https://example.invalid/{filename}", sha256=digest, size=len(data),
            wheel_sha256=digest,
        )

    return make
