"""Probes: pytest inside the image, as a random user, without network, on a read-only root."""

from __future__ import annotations

import hashlib
import io
import json
import random
import secrets
import subprocess
import tarfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import IO, Any

import requests
from docker.errors import DockerException, NotFound

from envspec.console import TAIL, Console
from envspec.engine import Engine
from envspec.errors import EngineError, ProbeError
from envspec.matrix import Project
from envspec.paths import cache_dir
from envspec.plan import HOME, SOURCE_DATE_EPOCH, Plan, files_of
from envspec.verdict import Outcome

#: First thing on a line of the ladder that is meant for us; tests/probes/ladder.py has the same.
MARK = "ENVSPEC-PROBE "
LABEL = "dev.envspec.probe"
#: The program that the container starts with: it takes the probes from standard input, so that
#: an engine on another machine serves as well, and stays there to see the builder go.
BOOT = """\
import runpy, sys, tarfile
tarfile.open(fileobj=sys.stdin.buffer, mode="r|").extractall("/tmp/probes", filter="data")
sys.path.insert(0, "/tmp/probes")
runpy.run_path("/tmp/probes/ladder.py", run_name="__main__")
"""
#: Seconds for all probes. The longest ladder, cpu's, took 110 s on 2 cores.
TIME_LIMIT = 1200.0
#: User ids that no image has and that rootless Docker's maps still hold.
UIDS = (20_000, 60_000)


def bundle(project: Project, plan: Plan) -> bytes:
    """The probes and what they must know of the plan, as a tar. The same for the same inputs."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for path in files_of(project.probes_dir):
            _add(tar, path.relative_to(project.probes_dir).as_posix(), path.read_bytes())
        _add(tar, "plan.json", json.dumps(_facts(plan), sort_keys=True).encode())
    return out.getvalue()


def bundle_sha256(data: bytes) -> str:
    """The identity of the probes: a verdict holds for these only."""
    return hashlib.sha256(data).hexdigest()


def run(
    engine: Engine, image_id: str, plan: Plan, data: bytes, console: Console,
    selected: Sequence[str] = (),
) -> list[Outcome]:
    """Probe an image that the engine holds.

    Args:
        data: of ``bundle``.
        selected: ids or files of probes; all of them when empty.

    Returns:
        How every probe ended; one that was lost with the container is ``failed``.

    Raises:
        ProbeError: the probes could not start, or none was found.
        EngineError: the engine can't run the image.
    """
    remove_leftovers(engine)
    name = f"envspec-probe-{secrets.token_hex(4)}"
    argv = _command(engine, image_id, plan, name, selected)
    console.log("$ " + " ".join(argv[:-len(selected) - 3 or None]))
    ladder = _Ladder(console)
    with _container(engine, argv, name) as process:
        assert process.stdin and process.stdout
        with suppress(BrokenPipeError):
            process.stdin.write(data)
            process.stdin.flush()
        timer = threading.Timer(TIME_LIMIT, process.kill)
        timer.start()
        try:
            ladder.listen(process.stdout)
        finally:
            timer.cancel()
        code = process.wait()
    return ladder.finish(code, image_id)


def remove_leftovers(engine: Engine) -> None:
    """Remove probe containers of runs that were killed together with their engine's client."""
    try:
        with closing(engine.client(timeout=60)) as client:
            ours: dict[str, str | list[str] | bool] = {"label": f"{LABEL}={_owner()}"}
            for container in client.containers.list(all=True, filters=ours, ignore_removed=True):
                with suppress(NotFound):
                    container.remove(force=True)
    except (DockerException, requests.RequestException) as error:
        raise EngineError(
            "containers of an earlier run can't be removed", where=engine.host, why=str(error),
            remedy="`python build.py engine status`; restart that engine",
        ) from None


class _Ladder:
    """What the ladder inside the container says, as it comes."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.ids: list[str] = []
        self.outcomes: dict[str, Outcome] = {}
        self.started = ""
        self.done = False
        self.tail: list[str] = []

    def listen(self, stream: IO[bytes]) -> None:
        lines = self._lines(stream)
        for _ in lines:
            if self.ids:
                break
        label = f"{len(self.ids)} probes"
        with self.console.progress(label, len(self.ids), unit="probes") as advance:
            for outcome in lines:
                if outcome:
                    advance(1)
                    if outcome.outcome == "failed":
                        self.console.say(f"   failed: {outcome.id}", style="bold red")

    def _lines(self, stream: IO[bytes]) -> Iterator[Outcome | None]:
        for raw in stream:
            line = raw.decode(errors="replace").rstrip("\n")
            if not line.startswith(MARK):
                if line:
                    self.console.log(line)
                    self.tail = [*self.tail[1 - TAIL:], line]
                continue
            event = json.loads(line.removeprefix(MARK))
            yield self._take(event)

    def _take(self, event: dict[str, Any]) -> Outcome | None:
        kind = event.pop("event")
        if kind == "collected":
            self.ids = event["ids"]
        elif kind == "started":
            self.started = event["id"]
            self.console.log(f"probe {self.started}")
        elif kind == "result":
            outcome = Outcome(rung=event["id"].split("/")[0], **event)
            self.outcomes[outcome.id] = outcome
            return outcome
        elif kind == "done":
            self.done = True
        return None

    def finish(self, code: int, image_id: str) -> list[Outcome]:
        """All outcomes, once the container has ended."""
        words = "\n".join(self.tail)
        if not self.ids and not self.outcomes:
            if code in (125, 126, 127):  # docker run's own
                raise EngineError(
                    "the engine can't run the image", where=image_id, why=words,
                    remedy=self.console.with_log("see `python build.py engine status`"),
                )
            raise ProbeError(
                "the probes could not start", where=image_id,
                why=words or f"the container ended with {code}",
                remedy=self.console.with_log("the image has no working Python with pytest, or "
                                             "tests/probes has no probe"),
            )
        if not self.done:
            lost = [i for i in self.ids if i not in self.outcomes]
            if self.started in lost:
                lost.remove(self.started)
                self._lose(self.started, "failed", f"the container ended in it ({code}):\n{words}")
            for name in lost:
                self._lose(name, "not run", "the container ended before it")
        missing = [i for i in self.ids if i not in self.outcomes]
        for name in missing:
            self._lose(name, "failed", "it was collected and told no result")
        return list(self.outcomes.values())

    def _lose(self, name: str, outcome: Any, message: str) -> None:
        self.outcomes[name] = Outcome(
            id=name, rung=name.split("/")[0], outcome=outcome, message=message, seconds=0,
            remedy="read the last lines above: the program crashed, was killed for memory, or "
            f"took over {TIME_LIMIT:.0f} s",
        )


@contextmanager
def _container(engine: Engine, argv: list[str], name: str) -> Iterator[subprocess.Popen[bytes]]:
    """The client that runs the container; afterwards neither is there."""
    process = subprocess.Popen(
        argv, env=engine.environ(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe
            with suppress(BrokenPipeError):
                pipe.close()
        with suppress(DockerException, requests.RequestException), closing(
            engine.client(timeout=60)
        ) as client:
            client.containers.get(name).remove(force=True)


def _command(
    engine: Engine, image_id: str, plan: Plan, name: str, selected: Sequence[str]
) -> list[str]:
    uid = random.randint(*UIDS)
    gpus = ["--gpus", "all"] if plan.target.capabilities and _has_gpus(engine) else []
    return engine.cli(
        "run", "--rm", "--interactive", "--name", name, "--label", f"{LABEL}={_owner()}",
        "--network", "none", "--read-only", "--user", f"{uid}:{uid}", "--shm-size", "1g",
        "--tmpfs", "/tmp:rw,exec,mode=1777", "--tmpfs", f"{HOME}:rw,exec,mode=1777", *gpus,
        image_id, "python", "-c", BOOT, *selected,
    )


def _has_gpus(engine: Engine) -> bool:
    with closing(engine.client(timeout=60)) as client:
        info = client.info()
    devices = [d.get("ID", "") for d in info.get("DiscoveredDevices") or ()]
    return "nvidia" in info.get("Runtimes", {}) or any(d.startswith("nvidia.com/") for d in devices)


def _owner() -> str:
    """Containers of other caches are not ours to remove."""
    return hashlib.sha256(str(cache_dir().resolve()).encode()).hexdigest()[:12]


def _facts(plan: Plan) -> dict[str, Any]:
    components = plan.row.components_for(plan.target_name)
    return {
        "row": plan.row_name,
        "target": plan.target_name,
        "python": plan.row.python,
        "capabilities": plan.row_target.serves,
        "components": {
            n: {"version": c.version, "imports": c.imports} for n, c in components.items()
        },
        "overrides": [o.model_dump(mode="json") for o in plan.row_target.overrides],
        "lock": {a.name: a.version for a in plan.lock.artifacts},
    }


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = len(data), SOURCE_DATE_EPOCH, 0o644
    tar.addfile(info, io.BytesIO(data))
