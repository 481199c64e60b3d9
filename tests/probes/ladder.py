"""Runs the probes inside the image and tells the builder, a line of JSON each, how they end.

The builder starts it in a container whose standard input first brought this folder. When that
input ends, the builder is gone, and so is this process: it is the container's first, so nothing
of the container outlives it.
"""

from __future__ import annotations

import faulthandler
import inspect
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parent
#: Cheapest first. After a rung with a failure the deeper ones are not run.
RUNGS = ("install", "import", "runtime", "silent")
MARK = "ENVSPEC-PROBE "
BUILDER_GONE = 86
#: The only reasons for which a probe may be skipped, as the first word of the reason.
EXCUSES = {"pending": "pending", "not applicable": "not applicable", "not run": "not run"}


class Ladder:
    """A pytest plugin: order, markers, excuses, and one event at each start and end."""

    def __init__(self, out: int, plan: dict[str, Any]) -> None:
        self.out, self.plan = out, plan
        self.lost: str | None = None
        self.told: set[str] = set()
        self.seconds: dict[str, float] = {}

    def tell(self, **event: Any) -> None:
        os.write(self.out, f"\n{MARK}{json.dumps(event)}\n".encode())

    def pytest_configure(self, config: pytest.Config) -> None:
        for line in (
            "targets(*names): the probe applies to these targets only",
            "needs(*what): what has to be there, `gpu` or a CPU flag; pending without",
            "remedy(text): what to do when it fails",
            "report(url): the public report that taught it",
        ):
            config.addinivalue_line("markers", line)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: RUNGS.index(rung(item)))
        self.tell(event="collected", ids=[identity(item) for item in items])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.result(report.nodeid, "failed", str(report.longrepr), 0.0,
                        remedy="correct the probe's file: it can't be collected")

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self.tell(event="started", id=identity(item))
        target = self.plan["target"]
        for mark in item.iter_markers("targets"):
            if target not in mark.args:
                pytest.skip(f"not applicable: only for {', '.join(mark.args)}")
        if self.lost and rung(item) != self.lost:
            pytest.skip(f"not run: a probe of rung {self.lost} failed")
        for mark in item.iter_markers("needs"):
            for what in mark.args:
                if what == "gpu" and not self.plan["capabilities"]:
                    pytest.skip(f"not applicable: target {target} has no GPU")
                if not present(what):
                    pytest.skip(f"pending: needs {what}, which is not here")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Iterator[None]:
        report: pytest.TestReport = yield
        outcome, message = judge(report)
        name = identity(item)
        self.seconds[name] = self.seconds.get(name, 0.0) + call.duration
        # A result is told once: at the first thing that is not "passed", else after the call.
        if name not in self.told and (outcome != "passed" or report.when == "call"):
            self.told.add(name)
            if outcome == "failed":
                self.lost = self.lost or rung(item)
            remedy = next((m.args[0] for m in item.iter_markers("remedy")), "")
            self.result(
                name, outcome, message, self.seconds[name], remedy=remedy,
                catches=inspect.getdoc(item.function) or "",
                report=next((m.args[0] for m in item.iter_markers("report")), ""),
            )
        return report

    def result(
        self, name: str, outcome: str, message: str, seconds: float, *,
        remedy: str, catches: str = "", report: str = "",
    ) -> None:
        self.tell(
            event="result", id=name, outcome=outcome, message=message,
            seconds=round(seconds, 2), remedy=remedy, catches=catches, report=report,
        )


def judge(report: pytest.TestReport) -> tuple[str, str]:
    """Outcome and message of a report. Nothing but a pass is one, and a skip needs its excuse."""
    if hasattr(report, "wasxfail"):
        return "failed", "a probe may not be expected to fail"
    if report.passed:
        return "passed", ""
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = reason.removeprefix("Skipped: ")
        for excuse, outcome in EXCUSES.items():
            if reason.startswith(f"{excuse}: "):
                return outcome, reason.removeprefix(f"{excuse}: ")
        return "failed", f"skipped without an excuse that counts: {reason}"
    crash = getattr(report.longrepr, "reprcrash", None)
    message = crash.message if crash else str(report.longrepr)
    return "failed", message.removeprefix("Failed: ")


def identity(item: pytest.Item) -> str:
    """``import/test_components.py::test_import[vllm]``, wherever the folder lies."""
    return f"{item.path.relative_to(FOLDER).as_posix()}::{item.name}"


def rung(item: pytest.Item) -> str:
    return item.path.relative_to(FOLDER).parts[0]


def present(what: str) -> bool:
    """Whether this machine has a GPU, or a flag of /proc/cpuinfo."""
    if what == "gpu":
        import torch

        return torch.cuda.is_available()
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return any(line.startswith("flags") and what in line.split() for line in lines)


def die_with_the_builder(stdin: int) -> None:
    """End this process, and with it the container, when the builder's end of stdin closes."""
    while os.read(stdin, 4096):
        pass
    os._exit(BUILDER_GONE)


def main(selected: list[str]) -> int:
    """Run the probes (all when none is selected) and tell how each ended."""
    plan = json.loads((FOLDER / "plan.json").read_text())
    out = os.dup(1)
    faulthandler.enable()
    # The first process of a container ignores what it does not handle.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
    # A copy, as pytest takes the original away.
    threading.Thread(target=die_with_the_builder, args=(os.dup(0),), daemon=True).start()
    ladder = Ladder(out, plan)
    paths = [str(FOLDER / name) for name in selected] or [
        str(FOLDER / name) for name in RUNGS if (FOLDER / name).is_dir()
    ]
    code = pytest.main(
        ["-q", "--strict-markers", "--continue-on-collection-errors", "-p", "no:cacheprovider",
         "--import-mode=importlib", f"--rootdir={FOLDER}", "-c", os.devnull, *paths],
        plugins=[ladder],
    )
    ladder.tell(event="done", code=int(code))
    return int(code)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    # Skips interpreter shutdown, where libraries' threads can still fail after the work is done.
    os._exit(code)
