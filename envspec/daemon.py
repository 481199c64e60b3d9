"""Background processes of our own: started once, found again, stopped."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from envspec.console import TAIL
from envspec.errors import EngineError

POLL = 0.05
#: How long a process may take to end after SIGTERM, and then after SIGKILL (seconds).
GRACE = 15.0
KILL_GRACE = 5.0

#: Children of this very process, which has to reap them when they end.
_children: list[subprocess.Popen[bytes]] = []


@dataclass(frozen=True)
class Process:
    """One line of /proc. ``argv`` is empty for zombies and kernel threads."""

    pid: int
    parent: int
    argv: tuple[str, ...]

    @property
    def program(self) -> str:
        return Path(self.argv[0]).name if self.argv else ""


@dataclass(frozen=True)
class Daemon:
    """A program that runs in the background at most once per configuration file.

    Its command line, which names that file, is its identity: a pid file could be stale and
    name a stranger, the process table can't. ``argv[0]`` is an absolute path.
    """

    argv: tuple[str, ...]
    config: Path
    log: Path

    def pid(self) -> int | None:
        """The process id, None when it does not run."""
        # Our own child has, for a moment after its start, no command line in /proc yet.
        for child in _children:
            if child.args == self.argv and child.poll() is None:
                return child.pid
        program = Path(self.argv[0]).name
        for process in processes():
            if process.program == program and str(self.config) in process.argv[1:]:
                return process.pid
        return None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from starting or stopping it meanwhile."""
        path = self.config.with_suffix(".lock")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def spawn(self, env: Mapping[str, str]) -> int:
        """Start it, in a session of its own so that Ctrl-C does not reach it."""
        if self.log.exists():
            self.log.replace(self.log.with_suffix(".log.old"))
        with self.log.open("wb") as log:
            child = subprocess.Popen(
                self.argv, env=dict(env), cwd="/", stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, start_new_session=True,
            )
        _children.append(child)
        return child.pid

    def wait_ready(self, ready: Callable[[], bool], timeout: float) -> None:
        """Return as soon as ``ready()``.

        Raises:
            EngineError: it ended, or is not ready after ``timeout`` seconds.
        """
        name, end = Path(self.argv[0]).name, time.monotonic() + timeout
        while not ready():
            ended = self.pid() is None
            if ended or time.monotonic() > end:
                raise EngineError(
                    f"{name} ended while it started" if ended
                    else f"{name} is not ready after {timeout:.0f} s",
                    where=str(self.log), why=self.last_words(),
                    remedy="read the log; `python build.py engine stop` and try again",
                )
            time.sleep(POLL)

    def last_words(self) -> str | None:
        """The end of its log."""
        if not self.log.exists():
            return None
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-TAIL:]) or None

    def stop(self) -> None:
        """End it and wait for that; nothing happens when it does not run."""
        while (pid := self.pid()) is not None:
            end([pid])


def processes() -> Iterator[Process]:
    """All processes that this one can see."""
    # Our own children stay in the table until they are asked for.
    _children[:] = [child for child in _children if child.poll() is None]
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        # They come and go while we read.
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            argv = (folder / "cmdline").read_bytes().rstrip(b"\0").decode(errors="replace")
            # The program's name, in parentheses, may itself have spaces and parentheses.
            stat = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            yield Process(int(folder.name), int(stat[1]), tuple(argv.split("\0")) if argv else ())


def with_descendants(roots: Iterable[Process], table: Sequence[Process]) -> list[int]:
    """Process ids of ``roots`` and of all that they started, as ``table`` has them."""
    found = {process.pid for process in roots}
    while new := {p.pid for p in table if p.parent in found} - found:
        found |= new
    return sorted(found)


def end(pids: Iterable[int], grace: float = GRACE) -> None:
    """SIGTERM, and SIGKILL after ``grace`` seconds (at once when it is 0)."""
    left = list(pids)
    for number, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, KILL_GRACE)):
        if not patience:
            continue
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        until = time.monotonic() + patience
        while (left := [pid for pid in left if _alive(pid)]) and time.monotonic() < until:
            time.sleep(POLL)
        if not left:
            return
    raise EngineError(
        "a process does not end", where=f"process {', '.join(map(str, left))}",
        why="it got SIGKILL and is still there",
        remedy="it waits for the kernel, mostly for a disk: see `dmesg`",
    )


def _alive(pid: int) -> bool:
    """Whether it still runs. A zombie does not: on some machines nobody reaps orphans."""
    for child in _children:
        child.poll()
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"
