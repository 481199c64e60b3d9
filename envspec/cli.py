"""The command line: thin commands over the stages, one exit code per class of error."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from envspec import assemble, engine, errors, oslock, registry, render, resolve, space, workflow
from envspec import clean as cleaning
from envspec import lock as locking
from envspec.console import Console, emit_json, human_bytes
from envspec.errors import INTERRUPTED_EXIT_CODE, EnvspecError
from envspec.exclusive import exclusive
from envspec.matrix import BootstrapBase, Project, RegistryBase
from envspec.paths import CHECKOUT, cache_dir
from envspec.resolve import override_text

CLASSES = sorted(EnvspecError.__subclasses__(), key=lambda c: c.exit_code)

EXIT_CODES = "\n".join(
    ["Exit codes:", "", "   0  done", "   1  a fault of this program", "   2  wrong arguments"]
    + [f"  {c.exit_code:2}  {c.title}: {(c.__doc__ or '').strip()}" for c in CLASSES]
    + [f" {INTERRUPTED_EXIT_CODE}  interrupted"]
)

HELP = """\
Turns the version matrix into an image, probes it, and publishes it only when it is known to work.

\b
  python build.py --target sm120     plan, build, probe and publish
  python build.py plan --target cpu  what that would do
  python build.py lock               after an edit of matrix.toml

Without --row, the first of the target's rows is taken whose every artifact can be had from here.
Without --registry, an embedded registry on loopback is published to. Where no Docker answers, an
embedded one is started. Everything that is made lies in $ENVSPEC_CACHE (~/.cache/envspec).
"""

app = typer.Typer(
    help=HELP, epilog="\b\n" + EXIT_CODES, no_args_is_help=True, add_completion=False,
    rich_markup_mode=None, pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
engine_app = typer.Typer(
    help="The container engine and the registry that builds use.", no_args_is_help=True
)
app.add_typer(engine_app, name="engine")

Target = Annotated[str, typer.Option("--target", "-t", help="Target of the matrix: sm120, cpu…")]
MaybeTarget = Annotated[
    str | None, typer.Option("--target", "-t", help="Target of the matrix: sm120, cpu…")
]
Row = Annotated[
    str | None, typer.Option("--row", "-r", help="This row and no other; fails if it can't be had.")
]
Registry = Annotated[
    str | None,
    typer.Option(
        help="Publish to REGISTRY/TARGET (ghcr.io/me), with the credentials of `docker login`."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="The result as JSON on standard output.")]


class State:
    """What every command shares."""

    matrix = CHECKOUT / "matrix.toml"
    console = Console()

    @classmethod
    def project(cls) -> Project:
        return Project(cls.matrix)


@app.callback(invoke_without_command=True)
def build(
    context: typer.Context,
    target: MaybeTarget = None,
    row: Row = None,
    registry: Registry = None,
    as_json: Json = False,
    matrix: Annotated[
        Path, typer.Option(help="Another matrix; its locks and Dockerfiles lie beside it.")
    ] = State.matrix,
) -> None:
    """Plan, build, probe and publish; what is already true is skipped."""
    State.matrix = matrix
    State.console = _console(context.invoked_subcommand or "build")
    if context.invoked_subcommand:
        if target or row or registry or as_json:
            raise typer.BadParameter("options of a command stand after its name")
        return
    if not target:
        raise typer.BadParameter("name a --target, or a command")
    done = workflow.build(State.project(), target, row, registry, State.console)
    _report(done)
    if as_json:
        emit_json(workflow.as_json(done))


@app.command("plan")
def plan_command(target: Target, row: Row = None, as_json: Json = False) -> None:
    """What would be built, from where, how big, what is reused, and which overrides apply and why.
    """
    project = State.project()
    choice = workflow.choose(project, target, row, State.console)
    facts = _facts(choice)
    if as_json:
        emit_json(facts)
    else:
        _show(choice, facts)


@app.command()
def lock(
    target: MaybeTarget = None,
    row: Row = None,
    upgrade: Annotated[
        list[str] | None,
        typer.Option(help="A package that may change though its locked version fits. Repeatable."),
    ] = None,
) -> None:
    """Resolve to committed locks: all, or those of --target and --row. Locked versions stay where
    they fit. Renders the Dockerfiles too.
    """
    project, console = State.project(), State.console
    with exclusive(console):
        pairs = [
            (r, t) for r, t in project.pairs() if target in (None, t) and row in (None, r)
        ]
        if not pairs:
            project.row_for(row or "", target or "")
        bases = {project.row(r).base for r, _ in pairs}
        for base in sorted(bases):
            spec = project.matrix.bases[base]
            if isinstance(spec, BootstrapBase) and not _base_fits(project, base, upgrade):
                with console.stage(f"lock of base {base}"):
                    oslock.lock_base(project, base, console)
        for r, t in pairs:
            before = locking.read_or_none(project, r, t)
            after = resolve.resolve(project, r, t, console, upgrade or ())
            changes = resolve.difference(before, after)
            many = len(after.artifacts)
            console.say(f"{r} × {t}: {many} packages, " + (
                f"{len(changes)} changed" if changes else "unchanged"
            ))
            for line in changes if before else ():
                console.say(f"   {line}")
        if not (target or row):
            for path in render.write(project):
                console.say(f"rendered {path.relative_to(project.root)}")


@app.command("render")
def render_command(
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; fail when a file is stale.")
    ] = False,
) -> None:
    """Write the Dockerfiles, their requirement files and the matrix's JSON schema."""
    project = State.project()
    if check:
        render.check(project)
        State.console.say("every rendered file is up to date")
        return
    changed = render.write(project)
    for path in changed:
        State.console.say(f"wrote {path.relative_to(project.root)}")
    if not changed:
        State.console.say("every rendered file was up to date")


@app.command("image")
def image_command(target: Target, row: Row = None, as_json: Json = False) -> None:
    """Make the image in the local OCI layout; probe and publish nothing."""
    project, console = State.project(), State.console
    with exclusive(console):
        made = workflow.choose(project, target, row, console).plan
        space.check(space.needs(made, probed=True, local_engine=False, local_registry=False))
        found = workflow.make_image(project, made, console)
    if as_json:
        emit_json({"digest": found.digest, "bytes": found.size,
                   "layers": [asdict(x) for x in found.layers]})


@app.command("probe")
def probe_command(target: Target, row: Row = None, as_json: Json = False) -> None:
    """Probe the image again, whatever an earlier verdict says; publish nothing."""
    project, console = State.project(), State.console
    with exclusive(console):
        made = workflow.choose(project, target, row, console).plan
        workflow.check_space(made, probed=False, embedded_registry=False)
        found = workflow.make_image(project, made, console)
        result = workflow.judge(project, made, found, console, again=True)
        if as_json:
            emit_json(json.loads(result.model_dump_json()) | {"channel": result.channel})
        workflow.insist(result, made, console)


@app.command("publish")
def publish_command(
    target: Target, row: Row = None, registry: Registry = None, as_json: Json = False
) -> None:
    """Publish an image that was already made and probed; makes and probes nothing."""
    done = workflow.publish_only(State.project(), target, row, registry, State.console)
    _report(done)
    if as_json:
        emit_json(workflow.as_json(done))


@app.command()
def verify(
    target: Target, row: Row = None, registry: Registry = None, as_json: Json = False
) -> None:
    """Compare what the registry holds with the image that was probed, blob by blob."""
    done = workflow.verify(State.project(), target, row, registry, State.console)
    _report(done)
    if as_json:
        emit_json(workflow.as_json(done))


@engine_app.command("status")
def engine_status(as_json: Json = False) -> None:
    """Which engine and registry would be used, and the disk that they take."""
    host, store = engine.status(), registry.status()
    if as_json:
        emit_json({"engine": asdict(host), "registry": {**asdict(store), "root": str(store.root)}})
        return
    kinds = {"host": "Docker of this machine", "embedded": "embedded Docker, running",
             "none": "embedded Docker, not running"}
    table = _table()
    table.add_row("engine", kinds[host.kind])
    if host.kind != "none":
        table.add_row("", f"{host.host}, {host.version}, buildx {host.buildx or 'missing'}, "
                      f"Compose {host.compose or 'missing'}")
    table.add_row("", f"{human_bytes(host.disk_used)} in {host.data_root}")
    table.add_row("registry", f"{store.name}, {'running' if store.running else 'not running'}")
    table.add_row("", f"{human_bytes(store.disk_used)} in {store.root}")
    State.console.table(table)


@engine_app.command("start")
def engine_start() -> None:
    """Start the engine, if none answers, and the embedded registry."""
    host = engine.connect(State.console)
    name = registry.ensure(State.console)
    State.console.say(f"engine {host.host}, registry {name}")


@engine_app.command("stop")
def engine_stop() -> None:
    """Stop the embedded engine and registry, containers first. What they hold stays."""
    engine.stop(State.console)
    registry.stop(State.console)


@engine_app.command("env")
def engine_env() -> None:
    """Shell lines after which plain `docker` and `docker compose` talk to the engine:
    eval "$(python build.py engine env)"
    """
    sys.stdout.write(engine.shell_env(engine.connect(State.console)))


@app.command()
def clean(
    everything: Annotated[
        bool, typer.Option("--all", help="The whole cache, engine and published images included.")
    ] = False,
) -> None:
    """Give disk back: images in the engine, and what no current lock needs."""
    if everything:
        cleaning.clean_all(State.console)
    else:
        cleaning.clean(State.project(), State.console)


@app.command()
def test(
    stack: Annotated[
        bool, typer.Option("--stack", help="Also build, probe and publish the real targets.")
    ] = False,
    unit: Annotated[bool, typer.Option("--unit", help="Only what needs no engine.")] = False,
) -> None:
    """Lint, types, unit tests in seconds, then tests with a real engine and a small image."""
    os.chdir(CHECKOUT)
    tests = ["tests/unit"] if unit else ["tests/unit", "tests/e2e"]
    marks = [] if stack else ["-m", "not stack"]
    for check in (["ruff", "check", "."], ["mypy"], ["pytest", *tests, *marks]):
        if code := subprocess.run([sys.executable, "-m", *check], check=False).returncode:
            raise SystemExit(code)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    # A stopped build cleans up as an interrupted one does.
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        app(list(sys.argv[1:] if arguments is None else arguments), "build.py",
            standalone_mode=False)
    except EnvspecError as error:
        State.console.error(error)
        return error.exit_code
    except typer.TyperException as error:  # wrong arguments
        getattr(error, "show")()  # noqa: B009 (typer's own types do not tell of it)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        State.console.say("interrupted: nothing half-made was kept, run it again to go on",
                          style="bold")
        return INTERRUPTED_EXIT_CODE
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        State.console.error(errors.SpaceError(
            "the disk is full", where=error.filename or str(cache_dir()),
            remedy="free some space (`python build.py clean`), then run it again",
        ))
        return errors.SpaceError.exit_code
    return 0


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _console(command: str) -> Console:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return Console(cache_dir() / "logs" / f"{stamp}-{command}-{os.getpid()}.log")


def _base_fits(project: Project, base: str, upgrade: Sequence[str] | None) -> bool:
    """A base's lock is renewed only when the matrix asks for something else, or by name."""
    if base in (upgrade or ()):
        return False
    try:
        oslock.read_base(project, base)
    except errors.LockError:
        return False
    return True


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, show_header=bool(headings), header_style="dim")
    for heading in headings:
        table.add_column(heading)
    return table


def _report(done: workflow.Built) -> None:
    console, publication = State.console, done.publication
    if done.unchanged:
        console.say("nothing to do: this image is made, probed and published")
    console.say(f"{publication.channel}: {publication.reference}", style="bold green")
    console.say(f"   tag {publication.repository}:{publication.tag}, {done.verdict.summary()}")
    pending = done.verdict.of("pending")
    for outcome in pending:
        console.say(f"   pending: {outcome.id}: {outcome.message}", style="yellow")
    if pending:
        console.say("   a candidate: what is pending was not seen to work")
    console.say("   next: eval \"$(python build.py engine env)\" && docker compose run --rm train")


def _facts(choice: workflow.Choice) -> dict[str, Any]:
    made = choice.plan
    reused: dict[str, bool] = {}
    if assemble.can_assemble(made):
        reused = {n: assemble.made(k) is not None for n, k in assemble.recipes(made).items()}
    needed = space.needs(made, probed=False, local_engine=True, local_registry=True)
    return {
        "target": made.target_name,
        "row": made.row_name,
        "title": made.row.title,
        "passed_over": [{"row": name, "why": why} for name, why in choice.passed_over],
        "base": made.base.reference if isinstance(made.base, RegistryBase)
        else f"{len(made.base_lock.debs if made.base_lock else ())} packages of Debian "
        f"{made.base.suite}",
        "python": made.row.python,
        "min_driver": made.row.min_driver,
        "serves": list(made.row_target.serves),
        "refuses": [r.model_dump() for r in made.row_target.refuses],
        "components": {
            n: {"version": c.version, "source": c.source.kind}
            for n, c in made.row.components_for(made.target_name).items()
        },
        "overrides": [o.model_dump() for o in made.row_target.overrides],
        "layers": [
            {"name": x.name, "packages": len(x.artifacts),
             "download_bytes": sum(a.size for a in x.artifacts),
             "reused": reused.get(x.name, False)}
            for x in made.layers
        ],
        "disk": asdict(needed),
    }


def _show(choice: workflow.Choice, facts: dict[str, Any]) -> None:
    console, made = State.console, choice.plan
    table = _table()
    table.add_row("target", f"{made.target_name}: {made.target.title}")
    table.add_row("row", f"{made.row_name}: {made.row.title}")
    table.add_row("base", facts["base"])
    table.add_row("Python", made.row.python)
    table.add_row("driver", f"{made.row.min_driver} or newer")
    table.add_row("serves", ", ".join(made.row_target.serves) or "CPU only")
    for refusal in made.row_target.refuses:
        table.add_row("refuses", f"{refusal.capability}: {refusal.reason}")
    for name, c in made.row.components_for(made.target_name).items():
        table.add_row("component", f"{name} {c.version} from {c.source.kind}")
    for override in made.row_target.overrides:
        table.add_row("override", override_text(override))
    needed = {name: n for name, n in facts["disk"].items() if n}
    table.add_row("disk", ", ".join(f"{human_bytes(n)} {name}" for name, n in needed.items()))
    console.table(table)
    layers = _table("layer", "packages", "download", "")
    for x in facts["layers"]:
        layers.add_row(x["name"], str(x["packages"]), human_bytes(x["download_bytes"]),
                       "reused" if x["reused"] else "to be made")
    console.table(layers)


