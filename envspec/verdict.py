"""The verdict: how every probe ended, bound to one image digest and one set of probes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

from pydantic import ValidationError
from rich.table import Table

from envspec.matrix import Model, Sha256
from envspec.paths import cache_dir

State = Literal["passed", "failed", "pending", "not applicable", "not run"]
Channel = Literal["verified", "candidate"]
RUNGS = ("install", "import", "runtime", "silent")


class Outcome(Model):
    """How one probe ended. ``seconds`` is its own run time."""

    id: str
    rung: str
    outcome: State
    message: str = ""
    seconds: float
    remedy: str = ""
    catches: str = ""
    report: str = ""


class Verdict(Model):
    """What was seen of one image.

    ``digest`` is the manifest's; ``probes`` the sha256 (hex) of the probes and of what they
    knew of the plan; ``lock`` the sha256 (hex) of the lock; ``probed_at`` is RFC 3339.
    """

    schema_version: Literal[1] = 1
    digest: Sha256
    row: str
    target: str
    lock: str
    probes: str
    probed_at: str
    outcomes: tuple[Outcome, ...]

    def of(self, state: State) -> list[Outcome]:
        return [o for o in self.outcomes if o.outcome == state]

    @property
    def channel(self) -> Channel | None:
        """Where the image may be published: nowhere unless something passed and nothing failed;
        ``candidate`` while a probe is pending."""
        if not self.of("passed") or self.of("failed") or self.of("not run"):
            return None
        return "candidate" if self.of("pending") else "verified"

    def summary(self) -> str:
        """One line: ``12 passed, 1 pending, 3 not applicable``."""
        count = Counter(o.outcome for o in self.outcomes)
        states: tuple[State, ...] = ("passed", "failed", "pending", "not applicable", "not run")
        return ", ".join(f"{count[s]} {s}" for s in states if count[s])

    def table(self) -> Table:
        """Every probe in a line, for a screen."""
        table = Table(box=None, pad_edge=False, header_style="dim")
        for heading in ("   rung", "probe", "outcome", "s", "note"):
            table.add_column(heading, justify="right" if heading == "s" else "left")
        for o in self.outcomes:
            style = {"passed": "green", "failed": "bold red", "pending": "yellow"}.get(o.outcome)
            note = o.message.splitlines()[0] if o.message else ""
            table.add_row(
                f"   {o.rung}", o.id.split("::")[-1], f"[{style}]{o.outcome}[/]" if style
                else o.outcome, f"{o.seconds:.1f}", note.replace("[", "\\["),
            )
        return table

    def complaint(self) -> str:
        """What failed, with messages and remedies."""
        lines = []
        for o in self.of("failed"):
            lines.append(f"{o.id}\n  catches: {' '.join(o.catches.split())}")
            lines += [f"  {line}" for line in o.message.splitlines()]
            if o.remedy:
                lines.append(f"  remedy: {o.remedy}")
        return "\n".join(lines)

    def junit(self) -> bytes:
        """The same for CI. Pending and not applicable are ``skipped`` there: JUnit knows no more.
        """
        root = ElementTree.Element("testsuites", name=f"envspec {self.target} {self.row}")
        for rung in RUNGS:
            mine = [o for o in self.outcomes if o.rung == rung]
            if not mine:
                continue
            failed = sum(o.outcome == "failed" for o in mine)
            skipped = sum(o.outcome not in ("passed", "failed") for o in mine)
            suite = ElementTree.SubElement(
                root, "testsuite", name=rung, tests=str(len(mine)), failures=str(failed),
                skipped=str(skipped), time=f"{sum(o.seconds for o in mine):.2f}",
            )
            for o in mine:
                case = ElementTree.SubElement(
                    suite, "testcase", classname=o.id.split("::")[0], name=o.id.split("::")[-1],
                    time=f"{o.seconds:.2f}",
                )
                if o.outcome == "failed":
                    fault = ElementTree.SubElement(case, "failure", message=o.remedy)
                    fault.text = o.message
                elif o.outcome != "passed":
                    reason = f"{o.outcome}: {o.message}"
                    ElementTree.SubElement(case, "skipped", message=reason)
        text: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
        return text


def path_of(digest: str, probes: str) -> Path:
    """Where a verdict is kept."""
    name = f"{digest.removeprefix('sha256:')[:16]}-{probes[:16]}.json"
    return cache_dir() / "verdicts" / name


def read(digest: str, probes: str) -> Verdict | None:
    """The verdict on this image by these probes, if there is one."""
    try:
        found = Verdict.model_validate_json(path_of(digest, probes).read_bytes())
    except (FileNotFoundError, ValidationError):
        return None
    return found if (found.digest, found.probes) == (digest, probes) else None


def write(verdict: Verdict) -> Path:
    """Keep a verdict, with its JUnit file beside it; returns the path of the JSON."""
    path = path_of(verdict.digest, verdict.probes)
    path.parent.mkdir(parents=True, exist_ok=True)
    for target, data in (
        (path.with_suffix(".xml"), verdict.junit()),
        (path, verdict.model_dump_json(indent=2).encode() + b"\n"),
    ):
        new = target.with_name(target.name + ".partial")
        new.write_bytes(data)
        new.replace(target)
    return path
