"""The image, assembled: each layer a pure function of the hashes of the wheels in it.

Wheels are unpacked by ``installer`` straight into a layer's tar: nothing is installed on this
machine, and a layer whose wheels stay the same is never made again. ``dockerfile.py`` is the
independent way to the same files.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import posixpath
import shutil
import stat
import tempfile
import threading
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from zipfile import BadZipFile

from installer import install
from installer.destinations import SchemeDictionaryDestination
from installer.exceptions import InstallerError
from installer.records import Hash, RecordEntry
from installer.scripts import Script
from installer.sources import WheelFile
from installer.utils import Scheme

from envspec import base, sdist
from envspec.console import Console
from envspec.errors import BuildError
from envspec.fetch import fetch, path_of
from envspec.lock import Artifact
from envspec.matrix import BootstrapBase, Project
from envspec.oci import Image, LayerBlob, LayerTar, has, write_image, write_layer
from envspec.paths import cache_dir
from envspec.plan import HOME, RUNTIME, USER, VENV, Plan, files_of, ref_name

if TYPE_CHECKING:
    from installer.scripts import LauncherKind, ScriptSection

#: Raised by one whenever the same inputs would give other bytes than before.
FORMAT = 1


def can_assemble(plan: Plan) -> bool:
    """A base from a registry or a component from a commit needs a Dockerfile's build."""
    return isinstance(plan.base, BootstrapBase) and not any(
        a.kind == "git" for a in plan.lock.artifacts
    )


def recipes(plan: Plan) -> dict[str, str]:
    """The key of each layer by its name, lowest layer first: what its bytes depend on."""
    assert plan.base_lock is not None
    script = hashlib.sha256(base.SCRIPT.read_bytes()).hexdigest()
    made_from: dict[str, object] = {
        "base": ["base", script, [d.sha256 for d in plan.base_lock.debs]],
        "environment": ["environment", plan.row.python],
    }
    for layer in plan.layers:
        made_from[layer.name] = [
            "wheels", plan.row.python,
            [(a.filename if a.kind == "wheel" else a.name, a.wheel_sha256)
             for a in layer.artifacts],
        ]
    made_from["runtime"] = ["runtime", plan.runtime_sha256]
    return {
        name: hashlib.sha256(json.dumps([FORMAT, value]).encode()).hexdigest()
        for name, value in made_from.items()
    }


def made(key: str) -> LayerBlob | None:
    """The layer of a key, when it was made before and is whole."""
    try:
        layer = LayerBlob(**json.loads(_record(key).read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None
    return layer if has(layer) else None


def assemble(project: Project, plan: Plan, console: Console) -> Image:
    """Make the layers that are not there, and the image of all of them.

    Raises:
        UnavailableError, IntegrityError: an artifact can't be had, or is not the locked one.
        BuildError: a wheel or the base can't be unpacked.
        SpaceError: the disk is full.
    """
    keys = recipes(plan)
    done = {name: blob for name, key in keys.items() if (blob := made(key))}
    todo = [layer for layer in plan.layers if layer.name not in done]
    needed = [a for layer in todo for a in layer.artifacts]
    fetch([a for a in needed if not _built(a)], console)
    for artifact in needed:
        if artifact.kind == "sdist":
            sdist.build(artifact, project.cutoff, console)

    stop = threading.Event()
    reused = len(done)
    jobs: dict[str, Callable[[], LayerBlob]] = {}
    if "environment" not in done:
        jobs["environment"] = lambda: write_layer(lambda tar: _environment(tar, plan.row.python))
    for layer in todo:
        jobs[layer.name] = partial(_wheel_layer, layer.artifacts, plan.row.python, stop, console)
    if "runtime" not in done:
        jobs["runtime"] = lambda: write_layer(lambda tar: _runtime(tar, project.runtime_dir))
    if "base" not in done:
        done["base"] = _keep(keys["base"], _base(plan, console))
    if jobs:
        label = f"{len(jobs)} layers"
        with (
            console.progress(label, len(jobs), unit="layers") as advance,
            ThreadPoolExecutor(os.cpu_count() or 1) as pool,
        ):
            running = {name: pool.submit(job) for name, job in jobs.items()}
            try:
                for name, job in running.items():
                    done[name] = _keep(keys[name], job.result())
                    advance(1)
            except BaseException:
                stop.set()
                for job in running.values():
                    job.cancel()
                raise
    console.say(f"   {len(keys) - reused} layers made, {reused} reused")
    return _image(plan, {name: done[name] for name in keys})


def existing(plan: Plan) -> Image | None:
    """The plan's image, when nothing has to be made for it."""
    layers = {name: made(key) for name, key in recipes(plan).items()}
    whole = {name: layer for name, layer in layers.items() if layer}
    return _image(plan, whole) if len(whole) == len(layers) else None


def _image(plan: Plan, layers: Mapping[str, LayerBlob]) -> Image:
    config = {
        "User": USER,
        "Env": [f"{k}={v}" for k, v in plan.env.items()],
        "WorkingDir": HOME,
        "Cmd": ["bash"],
        "Labels": plan.labels,
    }
    return write_image(
        ref_name(plan), [(f"envspec layer {name}", layer) for name, layer in layers.items()],
        config, plan.labels,
    )


def _record(key: str) -> Path:
    return cache_dir() / "layers" / f"{key}.json"


def _keep(key: str, layer: LayerBlob) -> LayerBlob:
    path = _record(key)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".partial")
    new.write_text(json.dumps(layer.as_json()))
    new.replace(path)
    return layer


def _built(artifact: Artifact) -> bool:
    return artifact.kind == "sdist" and path_of(sdist.wheel_of(artifact)).exists()


def _base(plan: Plan, console: Console) -> LayerBlob:
    """The bootstrap base: a Debian root from locked packages, as one layer."""
    assert plan.base_lock is not None
    debs = fetch(plan.base_lock.debs, console)
    work = Path(tempfile.mkdtemp(prefix="base-", dir=cache_dir()))
    try:
        folder = work / "debs"
        folder.mkdir()
        for deb in plan.base_lock.debs:
            (folder / deb.filename).symlink_to(debs[deb.sha256])
        base.make_rootfs(plan.base_lock, folder, work / "root", console)
        return write_layer(lambda tar: _tree(tar, work / "root"))
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _tree(tar: LayerTar, root: Path) -> None:
    """A folder as it is, but for times; device nodes and sockets are the engine's to make."""
    seen: dict[int, str] = {}
    for folder, folders, files in os.walk(root):
        folders.sort()
        for name in sorted([*folders, *files]):
            path = Path(folder, name)
            inside = path.relative_to(root).as_posix()
            found = path.lstat()
            owner, mode = (found.st_uid, found.st_gid), stat.S_IMODE(found.st_mode)
            if stat.S_ISLNK(found.st_mode):
                tar.link(inside, str(path.readlink()))
            elif stat.S_ISDIR(found.st_mode):
                tar.folder(inside, mode, owner)
            elif stat.S_ISREG(found.st_mode):
                if found.st_nlink > 1 and found.st_ino in seen:
                    tar.link(inside, seen[found.st_ino], hard=True)
                    continue
                seen[found.st_ino] = inside
                with path.open("rb") as data:
                    tar.file(inside, data, found.st_size, mode, owner)


def _environment(tar: LayerTar, python: str) -> None:
    """What ``python -m venv`` makes, without pip: the interpreter is the base's."""
    lines = f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {python}\n"
    tar.folder(f"{VENV}/bin")
    tar.link(f"{VENV}/bin/python", f"/usr/bin/python{python}")
    tar.link(f"{VENV}/bin/python3", "python")
    tar.link(f"{VENV}/bin/python{python}", "python")
    tar.folder(f"{VENV}/include")
    tar.folder(f"{VENV}/lib/python{python}/site-packages")
    tar.link(f"{VENV}/lib64", "lib")
    _text(tar, f"{VENV}/pyvenv.cfg", lines.encode())


def _runtime(tar: LayerTar, folder: Path) -> None:
    for path in files_of(folder):
        _text(tar, f"{RUNTIME}/{path.relative_to(folder).as_posix()}", path.read_bytes())


def _text(tar: LayerTar, name: str, data: bytes) -> None:
    tar.file(name, io.BytesIO(data), len(data), 0o644, (0, 0))


class _TarDestination(SchemeDictionaryDestination):
    """Unpacks a wheel into a layer. What two wheels both bring is written once."""

    tar: LayerTar
    #: Digest of each file that the layer has so far, by its name; shared by the layer's wheels.
    seen: dict[str, str]
    stop: threading.Event
    console: Console

    def write_to_fs(
        self, scheme: Scheme, path: str, stream: BinaryIO, is_executable: bool
    ) -> RecordEntry:
        if self.stop.is_set():
            raise InterruptedError
        data = stream.read()
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        name = posixpath.normpath(posixpath.join(self.scheme_dict[scheme], path))
        if not name.startswith(f"{VENV}/"):
            raise BuildError(
                f"a wheel writes outside of the environment: {path}",
                where=name, remedy="do not use that wheel",
            )
        before = self.seen.get(name)
        if before not in (None, digest):
            self.console.log(f"{name} is in two wheels with different contents: the later wins")
        if before != digest:
            # As pip and uv do, whatever mode the archive has.
            mode = 0o755 if is_executable or scheme == "scripts" else 0o644
            self.tar.file(name, io.BytesIO(data), len(data), mode, (0, 0))
            self.seen[name] = digest
        return RecordEntry(path, Hash("sha256", digest), len(data))

    def write_script(
        self, name: str, module: str, attr: str, section: ScriptSection
    ) -> RecordEntry:
        script = Script(name, module, attr, section)
        file, data = script.generate(self.interpreter, self.script_kind)
        return self.write_to_fs(Scheme("scripts"), file, io.BytesIO(data), is_executable=True)


def _wheel_layer(
    artifacts: tuple[Artifact, ...], python: str, stop: threading.Event, console: Console
) -> LayerBlob:
    return write_layer(lambda tar: _wheels(tar, artifacts, python, stop, console))


def _wheels(
    tar: LayerTar,
    artifacts: tuple[Artifact, ...],
    python: str,
    stop: threading.Event,
    console: Console,
) -> None:
    kind: LauncherKind = "posix"
    seen: dict[str, str] = {}
    for artifact in artifacts:
        wheel = artifact if artifact.kind == "wheel" else sdist.wheel_of(artifact)
        packages = f"{VENV}/lib/python{python}/site-packages"
        destination = _TarDestination(
            {
                "purelib": packages,
                "platlib": packages,
                "headers": f"{VENV}/include/site/python{python}/{artifact.name}",
                "scripts": f"{VENV}/bin",
                "data": VENV,
            },
            interpreter=f"{VENV}/bin/python",
            script_kind=kind,
        )
        destination.tar, destination.seen = tar, seen
        destination.stop, destination.console = stop, console
        try:
            with WheelFile.open(path_of(wheel)) as source:
                install(source, destination, {"INSTALLER": b"envspec\n"})
        except (BadZipFile, InstallerError, ValueError, LookupError, zlib.error) as error:
            raise BuildError(
                f"{wheel.filename} can't be unpacked", where=artifact.url,
                why=f"{type(error).__name__}: {error}", remedy="pin another version of it",
            ) from None
