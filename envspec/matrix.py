"""The version matrix: models, validation, errors that name file, key and nearest value."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterable
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
)

from envspec.errors import MatrixError

T = TypeVar("T")

Sha256 = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
Capability = Annotated[str, StringConstraints(pattern=r"^([0-9]+\.[0-9]|any)$")]
#: Row, target, base and layer names become tags, file names and labels.
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]*$")]


def _requirement(text: str) -> str:
    try:
        Requirement(text)
    except InvalidRequirement as error:
        raise ValueError(f"not a requirement (PEP 508): {error}") from None
    return text


def _version(text: str) -> str:
    try:
        Version(text)
    except InvalidVersion:
        raise ValueError(f"{text!r} is not a version (PEP 440)") from None
    return text


RequirementText = Annotated[str, AfterValidator(_requirement)]
VersionText = Annotated[str, AfterValidator(_version)]


class Model(BaseModel):
    """Immutable, and no unknown key passes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class IndexSource(Model):
    """A wheel or sdist from the package index, pinned by version here and by hash in the lock."""

    kind: Literal["index"]


class UrlSource(Model):
    """A wheel at a URL, pinned by its hash."""

    kind: Literal["url"]
    url: str
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class GitSource(Model):
    """A commit built from source inside the image build."""

    kind: Literal["git"]
    url: str
    commit: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]
    requires: tuple[RequirementText, ...] = Field(
        description="Static metadata: what the built wheel will require."
    )


Source = Annotated[IndexSource | UrlSource | GitSource, Field(discriminator="kind")]


class Component(Model):
    """A package the stack is made of, with its pin and where its bits come from."""

    version: VersionText
    source: Source
    imports: tuple[str, ...] = Field(default=(), description="Modules a probe must import.")
    targets: tuple[str, ...] | None = Field(
        default=None, description="Only for these targets; all of the row's when absent."
    )


class Override(Model):
    """A declared requirement that is broken on purpose."""

    requirement: RequirementText = Field(description="What is installed instead.")
    breaks: str = Field(description="The package whose requirement is broken.")
    reason: str = Field(min_length=10)
    probe: str = Field(description="rung/file::test that proves the override safe.")


class Refusal(Model):
    """A device that someone might expect this row to serve, and why it does not."""

    capability: Capability
    reason: str = Field(min_length=10)


class RowTarget(Model):
    """What one row promises for one target."""

    serves: tuple[Capability, ...] = Field(description="Compute capabilities that are promised.")
    refuses: tuple[Refusal, ...] = ()
    arch_list: str | None = Field(
        default=None, description="TORCH_CUDA_ARCH_LIST for components built from source."
    )
    overrides: tuple[Override, ...] = ()


class Row(Model):
    """A set of versions meant to work together."""

    title: str
    base: Name
    python: Annotated[str, StringConstraints(pattern=r"^3\.[0-9]+$")]
    cuda: Annotated[str, StringConstraints(pattern=r"^[0-9]+\.[0-9]+$")]
    min_driver: Annotated[str, StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)+$")]
    components: dict[str, Component]
    targets: dict[Name, RowTarget]

    def components_for(self, target: str) -> dict[str, Component]:
        """Those of the row's components that the target gets, in the matrix's order."""
        return {
            name: c
            for name, c in self.components.items()
            if c.targets is None or target in c.targets
        }


class RegistryBase(Model):
    """An image in a registry, by digest."""

    kind: Literal["registry"]
    #: With its registry host: a dot, a port or ``localhost`` before the first slash.
    image: Annotated[str, StringConstraints(pattern=r"^([^/]+[.:][^/]+|localhost)/.+$")]
    tag: str
    digest: Sha256

    @property
    def reference(self) -> str:
        return f"{self.image}:{self.tag}@{self.digest}"


class BootstrapBase(Model):
    """A Debian root made from locked packages."""

    kind: Literal["bootstrap"]
    suite: Name
    packages: tuple[str, ...]


Base = Annotated[RegistryBase | BootstrapBase, Field(discriminator="kind")]


class Target(Model):
    """What an image runs on, and the rows that can serve it, best first."""

    title: str
    capabilities: tuple[Capability, ...]
    rows: Annotated[tuple[Name, ...], Field(min_length=1)]


class LayerRule(Model):
    """Which packages share an image layer."""

    name: Name
    packages: Annotated[tuple[str, ...], Field(min_length=1)]


class Matrix(Model):
    """The whole file."""

    schema_: Literal[1] = Field(alias="schema")
    cutoff: AwareDatetime
    targets: dict[Name, Target]
    bases: dict[Name, Base]
    layers: Annotated[tuple[LayerRule, ...], Field(min_length=1)]
    rows: dict[Name, Row]

    def layer_of(self, package: str) -> str:
        """The layer that takes a package: a pattern that names it wins over ``*``."""
        for rule in self.layers:
            if any(p != "*" and fnmatchcase(package, p) for p in rule.packages):
                return rule.name
        return next(rule.name for rule in self.layers if "*" in rule.packages)


class Project:
    """A matrix with the files that lie beside it: locks, Dockerfiles, runtime, probes."""

    def __init__(self, path: Path) -> None:
        self.matrix_path = path.resolve()
        self.root = self.matrix_path.parent
        self.matrix = load(self.matrix_path)

    @property
    def cutoff(self) -> datetime:
        return self.matrix.cutoff

    @property
    def probes_dir(self) -> Path:
        return self.root / "tests" / "probes"

    @property
    def runtime_dir(self) -> Path:
        return self.root / "runtime"

    def lock_path(self, row: str, target: str) -> Path:
        """PEP 751 file of a row × target."""
        return self.root / "locks" / row / target / "pylock.toml"

    def base_lock_path(self, base: str) -> Path:
        """``sha256  url`` lines of a bootstrap base's packages."""
        return self.root / "locks" / "bases" / f"{base}.txt"

    def dockerfile_path(self, row: str, target: str) -> Path:
        """A target's first row has its Dockerfile at the top, the others lie in a folder."""
        if self.target(target).rows[0] == row:
            return self.root / f"Dockerfile.{target}"
        return self.root / "dockerfiles" / f"Dockerfile.{row}.{target}"

    def pairs(self) -> list[tuple[str, str]]:
        """Every row × target that the matrix has."""
        return [(row, t) for t, target in self.matrix.targets.items() for row in target.rows]

    def target(self, name: str) -> Target:
        return self._named("target", name, self.matrix.targets)

    def row(self, name: str) -> Row:
        return self._named("row", name, self.matrix.rows)

    def row_for(self, name: str, target: str) -> Row:
        """The row, if it serves the target.

        Raises:
            MatrixError: unknown row or target, or one that does not serve the other.
        """
        row, rows = self.row(name), self.target(target).rows
        if name not in rows:
            raise MatrixError(
                f"row {name!r} does not serve target {target!r}",
                where=f"{self.matrix_path.name}: targets.{target}.rows",
                why=f"the target lists {', '.join(rows)}",
                remedy=f"choose one of these with --row, or add {name!r} to the target's rows",
            )
        return row

    def base_of(self, row: str) -> RegistryBase | BootstrapBase:
        return self.matrix.bases[self.row(row).base]

    def _named(self, kind: str, name: str, table: dict[str, T]) -> T:
        if name in table:
            return table[name]
        raise MatrixError(
            f"no {kind} named {name!r}",
            where=f"{self.matrix_path.name}: {kind}s",
            why=f"it has {', '.join(table)}",
            remedy=_nearest(name, table) or f"add [{kind}s.{json.dumps(name)}] to the matrix",
        )


def load(path: Path) -> Matrix:
    """Read and validate a matrix.

    Raises:
        MatrixError: with file, key, what was wrong and the nearest valid value.
    """
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MatrixError(
            "there is no matrix", where=str(path), remedy="run in the project, or name it: --matrix"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise MatrixError(
            "the matrix is not TOML", where=path.name, why=str(error), remedy="correct that line"
        ) from None
    try:
        matrix = Matrix.model_validate(raw)
    except ValidationError as error:
        raise _explain(path, raw, error) from None
    _check_references(path, matrix)
    return matrix


def json_schema() -> dict[str, Any]:
    """For editors: completion and checks while typing."""
    return Matrix.model_json_schema(by_alias=True)


def _explain(path: Path, raw: Any, error: ValidationError) -> MatrixError:
    first, *others = error.errors()
    # Union members appear in pydantic's location as their discriminator value: not a key.
    keys = [k for i, k in enumerate(first["loc"]) if not _is_tag(raw, first["loc"], i)]
    key = _dotted(keys)
    why, remedy = first["msg"], ""
    if first["type"] == "extra_forbidden":
        why = f"unknown key {keys[-1]!r}"
        remedy = _nearest(str(keys[-1]), _siblings(first["loc"])) or "remove it"
    elif first["type"] == "missing":
        why, remedy = "the key is missing", f"add {keys[-1]!r}"
    elif first["type"] in ("literal_error", "union_tag_invalid"):
        ctx = first.get("ctx", {})
        expected = re.findall(r"'([^']+)'", str(ctx.get("expected") or ctx.get("expected_tags")))
        got = str(ctx.get("tag", first.get("input")))
        remedy = _nearest(got, expected) or f"use one of {', '.join(expected)}"
    if others:
        why += f" (and {len(others)} more)"
    return MatrixError(
        "the matrix is not valid",
        where=f"{path.name}: {key}",
        why=why,
        remedy=remedy or f"see docs/matrix.md for {key!r}",
    )


def _is_tag(raw: Any, loc: tuple[int | str, ...], index: int) -> bool:
    node = raw
    for key in loc[:index]:
        node = _get(node, key) if _get(node, key) is not None else node
    step = loc[index]
    return (
        step in ("index", "url", "git", "registry", "bootstrap")
        and isinstance(node, dict)
        and node.get("kind") == step
    )


def _get(node: Any, key: int | str) -> Any:
    if isinstance(node, dict):
        return node.get(key)
    if isinstance(node, list) and isinstance(key, int) and key < len(node):
        return node[key]
    return None


def _siblings(loc: tuple[int | str, ...]) -> list[str]:
    """Valid keys beside an unknown one: found by walking the models along the location."""
    schema = json_schema()
    nodes = [schema]
    for step in loc[:-1]:
        tagged = [n for n in nodes if _property(n, "kind").get("const") == step]
        below = [child for node in nodes for child in _children(node, step)]
        nodes = tagged or [
            schema["$defs"][ref.rsplit("/", 1)[-1]] for child in below for ref in _refs(child)
        ] or below
    return [key for node in nodes for key in node.get("properties", {})]


def _children(node: dict[str, Any], step: int | str) -> list[dict[str, Any]]:
    """What a JSON schema allows below one of its keys, or in one place of its list."""
    if isinstance(step, int):
        found = [node.get("items")]
    elif child := _property(node, step):
        found = [child]
    else:
        found = [*node.get("patternProperties", {}).values(), node.get("additionalProperties")]
    return [child for child in found if isinstance(child, dict)]


def _property(node: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = node.get("properties", {}).get(name, {})
    return found


def _refs(node: dict[str, Any]) -> list[str]:
    if "$ref" in node:
        return [node["$ref"]]
    return [o["$ref"] for o in node.get("oneOf", node.get("anyOf", [])) if "$ref" in o]


def _dotted(keys: Iterable[int | str]) -> str:
    out = ""
    for key in keys:
        if isinstance(key, int):
            out += f"[{key}]"
        else:
            text = key if re.fullmatch(r"[\w-]+", key) else json.dumps(key)
            out += f".{text}" if out else text
    return out


def _nearest(name: str, valid: Iterable[str]) -> str:
    match = difflib.get_close_matches(name, list(valid), n=1, cutoff=0.5)
    return f"did you mean {match[0]!r}?" if match else ""


def _check_references(path: Path, matrix: Matrix) -> None:
    """Names that one table takes from another must exist."""

    def check(key: str, name: str, valid: Iterable[str], kind: str) -> None:
        valid = list(valid)
        if name not in valid:
            raise MatrixError(
                "the matrix is not valid",
                where=f"{path.name}: {key}",
                why=f"no {kind} is named {name!r}; there are {', '.join(valid)}",
                remedy=_nearest(name, valid) or f"add that {kind}, or name another",
            )

    for t, target in matrix.targets.items():
        for i, row in enumerate(target.rows):
            check(f"targets.{t}.rows[{i}]", row, matrix.rows, "row")
            key = _dotted(["rows", row, "targets"])
            check(key, t, matrix.rows[row].targets, "target of the row")
    for r, row_ in matrix.rows.items():
        check(_dotted(["rows", r, "base"]), row_.base, matrix.bases, "base")
        for t, row_target in row_.targets.items():
            check(_dotted(["rows", r, "targets", t]), t, matrix.targets, "target")
            for i, override in enumerate(row_target.overrides):
                check(
                    _dotted(["rows", r, "targets", t, "overrides", i, "breaks"]),
                    override.breaks, row_.components_for(t), "component of that target",
                )
        for c, component in row_.components.items():
            for i, t in enumerate(component.targets or ()):
                key = _dotted(["rows", r, "components", c, "targets", i])
                check(key, t, row_.targets, "target of the row")
    names = [rule.name for rule in matrix.layers]
    if sum("*" in rule.packages for rule in matrix.layers) != 1 or len(set(names)) != len(names):
        raise MatrixError(
            "the matrix is not valid",
            where=f"{path.name}: layers",
            why='layer names must differ and exactly one layer must take "*"',
            remedy='give one layer packages = ["*"]',
        )
