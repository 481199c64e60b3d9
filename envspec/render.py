"""Rendered files: Dockerfiles, their requirement files and the matrix's schema, as committed text.

A Dockerfile needs nothing of this program: ``docker build -f Dockerfile.sm120 .`` is enough.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import jinja2

from envspec import plan as planning
from envspec import sdist
from envspec.errors import RenderError
from envspec.lock import Artifact
from envspec.matrix import GitSource, Project, RegistryBase, json_schema
from envspec.paths import CHECKOUT
from envspec.plan import Layer, Plan

TEMPLATES = CHECKOUT / "templates"
REMEDY = "run `python build.py render` and commit what it writes"

#: The installer inside Dockerfiles; it never enters an image. Version and hash as the package
#: index lists them; the same version as in this program's own environment when it was pinned.
UV_VERSION = "0.13.9"
UV_URL = (
    "https://files.pythonhosted.org/packages/3d/aa/"
    "26d64642d808de4a652579ef950d7cd2d37f080a8babf9c67c6b75fc4c3f/"
    "uv-0.13.9-py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
)
UV_SHA256 = "d7f459fe4fd247d830351c75686d3996ace3c6f3f728eb0e85a30b7ada0cef19"

#: Each ADD is a layer, and overlay file systems stack 127 at most: a base has more packages.
DEBS_PER_STAGE = 64

#: What a registry's base gets from its distribution: the interpreter with its headers, the compiler
#: that Triton and torch.compile call at run time, vLLM's libnuma.
APT_PACKAGES = ("ca-certificates", "g++", "libnuma1")


@dataclass(frozen=True)
class LayerStep:
    """One layer as a Dockerfile installs it."""

    position: int
    name: str
    #: Of hashed files; ``requirements`` is its file's path in the build context.
    count: int
    requirements: str
    #: One of the files is an sdist, so something is built.
    builds: bool
    #: Components whose wheel comes from a stage of its own.
    from_source: tuple[str, ...]


@dataclass(frozen=True)
class SourceStep:
    """One component that is built from a commit."""

    name: str
    version: str
    url: str
    commit: str
    #: File names in ``patches/<name>/``, in the order of application.
    patches: tuple[str, ...]


def render(project: Project) -> dict[Path, str]:
    """Every rendered file by its absolute path.

    Raises:
        RenderError: a template is broken.
        MatrixError, LockError: as ``plan.make``.
    """
    schema = json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"
    files = {project.root / "docs" / "matrix.schema.json": schema}
    for row, target in project.pairs():
        plan = planning.make(project, row, target)
        files[project.dockerfile_path(row, target)] = _dockerfile(project, plan)
        for position, layer in enumerate(plan.layers, 1):
            if text := _requirements(layer):
                files[requirements_path(project, plan, position, layer)] = text
    return files


def write(project: Project) -> list[Path]:
    """Bring the files on disk up to date; those that no row × target has any more are removed.

    Returns:
        The files that were written or removed.

    Raises:
        RenderError, MatrixError, LockError: as ``render``; nothing was written then.
    """
    files = render(project)
    changed = _stale(project, files)
    for path in changed:
        if path in files:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files[path], encoding="utf-8")
        else:
            path.unlink()
    return changed


def check(project: Project) -> None:
    """Compare the files on disk with what would be rendered.

    Raises:
        RenderError: names those that are missing, different or left over.
        MatrixError, LockError: as ``render``.
    """
    files = render(project)
    if stale := _stale(project, files):
        raise RenderError(
            f"{len(stale)} rendered files are stale",
            where="\n".join(p.relative_to(project.root).as_posix() for p in stale),
            why="the matrix, a lock, runtime/ or a template has changed since they were rendered, "
            "or they were edited by hand",
            remedy=REMEDY,
        )


def requirements_path(project: Project, plan: Plan, position: int, layer: Layer) -> Path:
    """The requirement file of a layer; positions count from 1."""
    folder = project.lock_path(plan.row_name, plan.target_name).parent / "layers"
    return folder / f"{position:02}-{layer.name}.txt"


def _stale(project: Project, files: dict[Path, str]) -> list[Path]:
    """Missing, different and left-over files, sorted."""
    there = {
        path
        for pattern in ("dockerfiles/*", "locks/*/*/layers/*")
        for path in project.root.glob(pattern)
        if path.is_file()
    }
    different = {path for path, text in files.items() if _read(path) != text.encode()}
    return sorted(different | (there - files.keys()))


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _requirements(layer: Layer) -> str:
    """Lines for ``uv pip install --no-deps --require-hashes``; empty without hashed files."""
    lines = [f"{a.name} @ {a.url} --hash=sha256:{a.sha256}" for a in _hashed(layer)]
    if not lines:
        return ""
    return "\n".join(["# Written by `python build.py render`; not to be edited.", *lines]) + "\n"


def _hashed(layer: Layer) -> list[Artifact]:
    return [a for a in layer.artifacts if a.kind != "git"]


def _dockerfile(project: Project, plan: Plan) -> str:
    steps = _layer_steps(project, plan)
    sources = _source_steps(project, plan)
    # A component's build needs torch and what lies below it, and must not be repeated when
    # something above changes.
    split = _torch_position(plan) if sources else 0
    registry = isinstance(plan.base, RegistryBase)
    return _text(
        "Dockerfile.j2",
        file=project.dockerfile_path(plan.row_name, plan.target_name)
        .relative_to(project.root).as_posix(),
        matrix=project.matrix_path.name,
        plan=plan,
        registry=registry,
        deb_stages=_deb_stages(plan),
        apt=sorted(
            (*APT_PACKAGES, f"python{plan.row.python}", f"python{plan.row.python}-dev")
        ),
        uv={"version": UV_VERSION, "url": UV_URL, "sha256": UV_SHA256},
        lower=steps[:split],
        upper=steps[split:],
        sources=sources,
        cutoff=project.cutoff.strftime("%Y-%m-%dT%H:%M:%SZ"),
        epoch=planning.SOURCE_DATE_EPOCH,
        sdist_env=sdist._ENV,
        venv=planning.VENV,
        runtime=planning.RUNTIME,
        user=planning.USER,
        uid=planning.UID,
        home=planning.HOME,
    )


def _layer_steps(project: Project, plan: Plan) -> list[LayerStep]:
    return [
        LayerStep(
            position=position,
            name=layer.name,
            count=len(_hashed(layer)),
            requirements=requirements_path(project, plan, position, layer)
            .relative_to(project.root).as_posix(),
            builds=any(a.kind == "sdist" for a in layer.artifacts),
            from_source=tuple(a.name for a in layer.artifacts if a.kind == "git"),
        )
        for position, layer in enumerate(plan.layers, 1)
    ]


def _source_steps(project: Project, plan: Plan) -> list[SourceStep]:
    return [
        SourceStep(
            name=name,
            version=component.version,
            url=component.source.url,
            commit=component.source.commit,
            patches=_patches(project, name),
        )
        for name, component in plan.row.components_for(plan.target_name).items()
        if isinstance(component.source, GitSource)
    ]


def _patches(project: Project, component: str) -> tuple[str, ...]:
    return tuple(sorted(p.name for p in (project.root / "patches" / component).glob("*.patch")))


def _torch_position(plan: Plan) -> int:
    """The position of the layer that holds torch, 0 without one."""
    for position, layer in enumerate(plan.layers, 1):
        if any(a.name == "torch" for a in layer.artifacts):
            return position
    return 0


def _deb_stages(plan: Plan) -> list[tuple[Artifact, ...]]:
    debs = plan.base_lock.debs if plan.base_lock else ()
    return [debs[i : i + DEBS_PER_STAGE] for i in range(0, len(debs), DEBS_PER_STAGE)]


def _quoted(text: object) -> str:
    """As a Dockerfile's double-quoted word, in which nothing is expanded."""
    escaped = str(text).replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$")
    return f'"{escaped}"'


def _text(template: str, **names: object) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["quoted"] = _quoted
    try:
        return environment.get_template(template).render(names)
    except jinja2.TemplateError as error:
        line = f":{error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
        raise RenderError(
            "a template is broken",
            where=f"{TEMPLATES.name}/{template}{line}",
            why=f"{type(error).__name__}: {error}",
            remedy="correct the template, or give the name that it uses in envspec/render.py",
        ) from None
