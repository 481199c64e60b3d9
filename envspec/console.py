"""What a person sees: stages, bars on a terminal, plain lines elsewhere, and a log kept in full."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from rich.console import Console as RichConsole
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from envspec.errors import EnvspecError

#: Without a terminal, progress is a line at most this often (seconds).
PLAIN_INTERVAL = 10.0
#: Columns of tables where there is no terminal.
WIDTH = 160
#: How many trailing lines of a failed command are shown; the log file has them all.
TAIL = 15

Advance = Callable[[int], None]


class Console:
    """Writes for people on stderr and for machines on stdout, and logs both in full."""

    def __init__(self, log: Path | None = None, *, stderr: IO[str] | None = None) -> None:
        out = stderr or sys.stderr
        self._out = RichConsole(
            file=out, highlight=False, soft_wrap=True, width=None if out.isatty() else WIDTH
        )
        self.log_path = log
        self._log: IO[str] | None = None
        if log:
            log.parent.mkdir(parents=True, exist_ok=True)
            self._log = log.open("a", encoding="utf-8")

    def log(self, text: str) -> None:
        """Add a line to the log file only."""
        if self._log:
            self._log.write(f"{time.strftime('%H:%M:%S')} {text}\n")
            self._log.flush()

    def say(self, text: str, style: str | None = None) -> None:
        """Print one line, without interpreting markup."""
        self._out.print(text, style=style, markup=False)
        self.log(text)

    def warn(self, text: str) -> None:
        self.say(f"warning: {text}", style="yellow")

    def table(self, table: Table) -> None:
        self._out.print(table)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Announce a stage and, at its end, the time it took."""
        self.say(f"── {name}", style="bold")
        start = time.monotonic()
        yield
        self.say(f"   {name} done in {time.monotonic() - start:.1f} s", style="dim")

    @contextmanager
    def progress(self, label: str, total: int, *, unit: str = "B") -> Iterator[Advance]:
        """A bar on a terminal, a line every few seconds elsewhere.

        Yields a function that takes what was done since its last call. ``unit`` is ``B``
        for bytes (with rate and time left) or a word for things that are counted.
        """
        if self._out.is_terminal:
            columns: list[ProgressColumn] = [TextColumn("   {task.description}"), BarColumn()]
            columns += (
                [DownloadColumn(), TransferSpeedColumn()] if unit == "B" else [MofNCompleteColumn()]
            )
            columns += [TimeElapsedColumn(), TimeRemainingColumn()]
            with Progress(*columns, console=self._out, transient=True) as bar:
                task = bar.add_task(label, total=total)
                yield lambda n: bar.update(task, advance=n)
            return
        done, start, last = 0, time.monotonic(), time.monotonic()

        def advance(n: int) -> None:
            nonlocal done, last
            done += n
            now = time.monotonic()
            if now - last >= PLAIN_INTERVAL:
                last = now
                rate = done / (now - start)
                left = (total - done) / rate if rate else 0.0
                self.say(f"   {label}: {_amount(done, unit)} of {_amount(total, unit)}, "
                         f"{_amount(int(rate), unit)}/s, {left:.0f} s left")

        yield advance

    def run(
        self,
        argv: Sequence[str | Path],
        *,
        error: type[EnvspecError],
        what: str,
        remedy: str,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: bytes | None = None,
    ) -> str:
        """Run a command, log its output, return its stdout.

        Raises:
            EnvspecError: of class ``error`` when it exits non-zero or does not exist; the
                message has its last lines and names the log.
        """
        command = [str(a) for a in argv]
        self.log("$ " + " ".join(command))
        try:
            done = subprocess.run(
                command, env=dict(env) if env is not None else None, cwd=cwd, input=stdin,
                stdin=subprocess.DEVNULL if stdin is None else None,
                capture_output=True, check=False,
            )
        except FileNotFoundError:
            raise error(what, where=command[0], why="no such command", remedy=remedy) from None
        out = done.stdout.decode(errors="replace")
        err = done.stderr.decode(errors="replace")
        for text in (out, err):
            if text.strip():
                self.log(text.rstrip())
        if done.returncode:
            tail = "\n".join((err.strip() or out.strip()).splitlines()[-TAIL:])
            where = f"{Path(command[0]).name} (exit code {done.returncode})"
            raise error(what, where=where, why=tail, remedy=self.with_log(remedy))
        return out

    def with_log(self, remedy: str) -> str:
        """The remedy, followed by where the full log is."""
        return f"{remedy}\nfull log: {self.log_path}" if self.log_path else remedy

    def error(self, error: EnvspecError) -> None:
        self.say(f"{error.title} error (exit code {error.exit_code})", style="bold red")
        self.say(str(error))


def emit_json(value: Any) -> None:
    """Write a result for machines on stdout."""
    json.dump(value, sys.stdout, indent=2, sort_keys=True)
    sys.stdout.write("\n")


def human_bytes(n: float) -> str:
    """Decimal units, as registries and disks use them: 4.4 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000 or unit == "GB":
            return f"{n:.0f} B" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1000
    raise AssertionError("unreachable")


def _amount(n: int, unit: str) -> str:
    return human_bytes(n) if unit == "B" else f"{n} {unit}"
