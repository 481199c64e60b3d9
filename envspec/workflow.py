"""The stages joined: what `python build.py --target T` does, from the matrix to a publication."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from envspec import (
    assemble,
    availability,
    debian,
    dockerfile,
    engine,
    image,
    lock,
    oci,
    plan,
    probe,
    publish,
    registry,
    space,
    verdict,
)
from envspec.console import Console, human_bytes
from envspec.errors import ProbeError, PublishError, UnavailableError
from envspec.exclusive import exclusive
from envspec.matrix import Project
from envspec.plan import Plan
from envspec.publish import Publication
from envspec.verdict import Verdict

#: How many artifacts a line about a row names.
SHOWN = 3


@dataclass(frozen=True)
class Choice:
    """The row that will be built, and why each one before it will not."""

    plan: Plan
    passed_over: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Destination:
    """Where to publish; ``embedded`` is our own registry on loopback."""

    prefix: str
    embedded: bool

    def repository(self, target: str) -> str:
        return f"{self.prefix}/{target}"


@dataclass(frozen=True)
class Built:
    """What a whole run ends with."""

    publication: Publication
    verdict: Verdict
    image: oci.Image
    #: Nothing had to be done.
    unchanged: bool


def choose(project: Project, target: str, row: str | None, console: Console) -> Choice:
    """The first row of the target whose every artifact can be had from here, or the one named.

    Raises:
        MatrixError: unknown names.
        LockError: a lock does not match the matrix, or belongs to no row × target.
        UnavailableError: no row, or not the named one, can be had.
    """
    lock.check_unused(project)
    rows = (row,) if row else project.target(target).rows
    if row:
        project.row_for(row, target)
    passed_over: list[tuple[str, str]] = []
    for name in rows:
        made = plan.make(project, name, target)
        missing = availability.check(made)
        if not missing:
            return Choice(made, tuple(passed_over))
        why = "; ".join(map(str, missing[:SHOWN]))
        if len(missing) > SHOWN:
            why += f"; and {len(missing) - SHOWN} more"
        passed_over.append((name, why))
        if not row:
            console.say(f"   row {name} is passed over: {why}", style="yellow")
    others = [r for r in project.target(target).rows if r not in rows]
    raise UnavailableError(
        f"row {row} can't be had from here" if row else f"no row of target {target} can be had",
        where=f"{project.matrix_path.name}: targets.{target}",
        why="\n".join(f"{name}: {why}" for name, why in passed_over),
        remedy="reach the hosts named above (a proxy or mirror), or "
        + (f"leave out --row: the target also has {', '.join(others)}" if others
           else "add a row whose artifacts can be had"),
    )


def make_image(project: Project, made: Plan, console: Console) -> oci.Image:
    """The plan's image in the layout."""
    with console.stage(f"image {made.target_name}, row {made.row_name}"):
        if assemble.can_assemble(made):
            found = assemble.assemble(project, made, console)
        else:
            found = dockerfile.build(project, made, engine.connect(console), console)
        console.say(f"   {found.digest}, {human_bytes(found.size)} compressed")
    return found


def judge(
    project: Project, made: Plan, found: oci.Image, console: Console, *, again: bool = False
) -> Verdict:
    """Load the image and probe it, unless these probes were run on it before.

    The verdict is kept whatever it is.

    Raises:
        ProbeError, EngineError: as ``probe.run``.
    """
    bundle = probe.bundle(project, made)
    probes = probe.bundle_sha256(bundle)
    if not again and (known := verdict.read(found.digest, probes)):
        return known
    host = engine.connect(console)
    with console.stage("engine"):
        image_id = image.load(host, found, image.local_name(made), console)
    with console.stage("probes"):
        outcomes = probe.run(host, image_id, made, bundle, console)
        result = Verdict(
            digest=found.digest, row=made.row_name, target=made.target_name,
            lock=made.lock.sha256, probes=probes, outcomes=tuple(outcomes),
            probed_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        path = verdict.write(result)
        console.table(result.table())
        console.say(f"   {result.summary()}; verdict in {path}")
    return result


def insist(result: Verdict, made: Plan, console: Console) -> None:
    """Stop here unless the verdict allows a channel.

    Raises:
        ProbeError: names every probe that failed, and where the image and the log are.
    """
    if result.channel is None:
        failed = result.of("failed")
        raise ProbeError(
            f"{len(failed)} probes failed: nothing is published" if failed
            else "no probe passed: nothing is published",
            where=", ".join(o.id for o in failed) or result.digest, why=result.complaint(),
            remedy=console.with_log(
                "follow the remedies above; look around in the image with `eval \"$(python "
                f"build.py engine env)\"`, then `docker run -it {image.local_name(made)}`"
            ),
        )


def build(
    project: Project, target: str, row: str | None, registry_prefix: str | None, console: Console
) -> Built:
    """Everything, skipping what is already true.

    Raises:
        EnvspecError: of the class of the stage that failed; nothing is published then.
    """
    with exclusive(console):
        with console.stage(f"plan for {target}"):
            made = choose(project, target, row, console).plan
            console.say(f"   row {made.row_name}: {made.row.title}")
        destination = _destination(registry_prefix, console)
        repository = destination.repository(target)
        known = _known(project, made)
        there = publish.published(*known, repository, console) if known else None
        if known and there:
            publish.write_env(project.root / ".env", there, target)
            return Built(there, known[1], known[0], unchanged=True)
        check_space(made, probed=known is not None, embedded_registry=destination.embedded)
        found = make_image(project, made, console)
        result = judge(project, made, found, console)
        insist(result, made, console)
        return _publish(project, made, found, result, repository, console)


def publish_only(
    project: Project, target: str, row: str | None, registry_prefix: str | None, console: Console
) -> Built:
    """Publish what was made and probed before.

    Raises:
        PublishError: it was not, or the registry refuses.
    """
    with exclusive(console):
        made = choose(project, target, row, console).plan
        found, result = _insist_known(project, made)
        destination = _destination(registry_prefix, console)
        return _publish(project, made, found, result, destination.repository(target), console)


def verify(
    project: Project, target: str, row: str | None, registry_prefix: str | None, console: Console
) -> Built:
    """Compare the registry's image with the one that was probed.

    Raises:
        PublishError: it was never probed, is not there, or is another one.
    """
    made = choose(project, target, row, console).plan
    found, result = _insist_known(project, made)
    repository = _destination(registry_prefix, console).repository(target)
    return Built(publish.verify(found, result, repository, console), result, found, unchanged=True)


def check_space(made: Plan, *, probed: bool, embedded_registry: bool) -> None:
    """Refuse to start when the disk can't hold what will be made.

    Raises:
        SpaceError: what is free, what is needed and for what.
    """
    status = engine.status()
    local = status.kind != "host" or status.host.startswith("unix://")
    space.check(space.needs(
        made, probed=probed, local_engine=local, local_registry=embedded_registry
    ))


def as_json(built: Built) -> dict[str, object]:
    """For machines."""
    return {
        "reference": built.publication.reference,
        "digest": built.publication.digest,
        "tag": built.publication.tag,
        "channel": built.publication.channel,
        "row": built.verdict.row,
        "target": built.verdict.target,
        "bytes": built.image.size,
        "unchanged": built.unchanged,
        "outcomes": {o.id: o.outcome for o in built.verdict.outcomes},
    }


def _publish(
    project: Project, made: Plan, found: oci.Image, result: Verdict, repository: str,
    console: Console,
) -> Built:
    with console.stage("publication"):
        publication = publish.publish(found, result, repository, console)
        publish.write_env(project.root / ".env", publication, made.target_name)
    return Built(publication, result, found, unchanged=False)


def _destination(prefix: str | None, console: Console) -> Destination:
    debian.tools(console)
    if prefix:
        return Destination(prefix.rstrip("/"), embedded=False)
    return Destination(f"{registry.ensure(console)}/envspec", embedded=True)


def _known(project: Project, made: Plan) -> tuple[oci.Image, Verdict] | None:
    """The image that this plan gives, when it is here and was probed with success."""
    found = assemble.existing(made) if assemble.can_assemble(made) else dockerfile.existing(made)
    if found is None:
        return None
    result = verdict.read(found.digest, probe.bundle_sha256(probe.bundle(project, made)))
    return (found, result) if result and result.channel else None


def _insist_known(project: Project, made: Plan) -> tuple[oci.Image, Verdict]:
    known = _known(project, made)
    if known is None:
        raise PublishError(
            "there is no image of this plan that passed its probes",
            where=f"{made.target_name}, row {made.row_name}",
            remedy=f"`python build.py --target {made.target_name}` makes, probes and publishes it",
        )
    return known
