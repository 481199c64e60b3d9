"""What will be built: row × target after every choice is made, before any network write."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from envspec import oslock
from envspec.lock import Artifact, BaseLock, Lock, read
from envspec.matrix import BootstrapBase, Project, RegistryBase, Row, RowTarget, Target

#: 2026-01-01T00:00:00Z: the time of every file in an image and of the image itself. A constant, so
#: that neither the clock nor a commit changes a digest.
SOURCE_DATE_EPOCH = 1767225600

#: Where things lie in an image; the same in an assembled image and in one built by its Dockerfile.
VENV = "/opt/venv"
RUNTIME = "/opt/envspec"
USER, UID = "trainer", 1000
HOME = "/home/trainer"


@dataclass(frozen=True)
class Layer:
    """Packages that share an image layer, sorted by name."""

    name: str
    artifacts: tuple[Artifact, ...]


@dataclass(frozen=True)
class Plan:
    """Everything that rendering and building need; a pure function of matrix, locks and runtime."""

    row_name: str
    target_name: str
    row: Row
    target: Target
    row_target: RowTarget
    base: RegistryBase | BootstrapBase
    lock: Lock
    base_lock: BaseLock | None
    layers: tuple[Layer, ...]
    #: sha256 (hex) over names and bytes of runtime/.
    runtime_sha256: str

    @property
    def env(self) -> dict[str, str]:
        """Environment variables of the image."""
        return {
            "PATH": f"{VENV}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "PYTHONPATH": RUNTIME,
            "VIRTUAL_ENV": VENV,
            # Any user id works: one without an entry in /etc/passwd has no other home and name.
            "HOME": HOME,
            "USER": USER,
            "ENVSPEC_ROW": self.row_name,
            "ENVSPEC_TARGET": self.target_name,
        }

    @property
    def labels(self) -> dict[str, str]:
        """OCI annotations and this project's own labels."""
        pins = self.row.components_for(self.target_name)
        own = {
            "row": self.row_name,
            "target": self.target_name,
            "capabilities": ",".join(self.row_target.serves),
            "cuda": self.row.cuda,
            "min-driver": self.row.min_driver,
            "lock": f"sha256:{self.lock.sha256}",
            "runtime": f"sha256:{self.runtime_sha256}",
            **{f"version.{name}": c.version for name, c in pins.items()},
        }
        return {
            "org.opencontainers.image.title": f"envspec {self.target_name}",
            "org.opencontainers.image.description": self.row.title,
            "org.opencontainers.image.base.name": (
                self.base.reference
                if isinstance(self.base, RegistryBase)
                else f"debian:{self.base.suite} from locked packages"
            ),
            **{f"dev.envspec.{key}": value for key, value in own.items()},
        }


def make(project: Project, row: str, target: str) -> Plan:
    """The plan of a row × target, from committed files alone.

    Raises:
        MatrixError: unknown names.
        LockError: a lock is missing or does not match the matrix.
    """
    lock = read(project, row, target)
    by_layer: dict[str, list[Artifact]] = {rule.name: [] for rule in project.matrix.layers}
    for artifact in lock.artifacts:
        by_layer[project.matrix.layer_of(artifact.name)].append(artifact)
    base = project.base_of(row)
    return Plan(
        row_name=row,
        target_name=target,
        row=project.row(row),
        target=project.target(target),
        row_target=project.row(row).targets[target],
        base=base,
        lock=lock,
        base_lock=(
            oslock.read_base(project, project.row(row).base)
            if isinstance(base, BootstrapBase)
            else None
        ),
        layers=tuple(Layer(n, tuple(artifacts)) for n, artifacts in by_layer.items() if artifacts),
        runtime_sha256=tree_sha256(project.runtime_dir),
    )


def ref_name(plan: Plan) -> str:
    """The name of the plan's image in the layout."""
    return f"{plan.target_name}-{plan.row_name}"


def files_of(folder: Path) -> list[Path]:
    """The files of a committed folder, in a fixed order, without what tools leave in it."""
    return sorted(
        p for p in folder.rglob("*")
        if p.is_file() and "__pycache__" not in p.parts and not p.name.startswith(".")
    )


def tree_sha256(folder: Path) -> str:
    """sha256 (hex) over the relative names and the bytes of a folder's files."""
    digest = hashlib.sha256()
    for path in files_of(folder):
        digest.update(f"{path.relative_to(folder).as_posix()}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
