"""The image by its own Dockerfile, through BuildKit: for what can't be assembled from wheels.

A base from a registry has files of its own, and a component from a commit wants its compiler.
The result enters the same layout as an assembled image, so all later stages are the same.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

from envspec import oci
from envspec.console import Console
from envspec.engine import Engine
from envspec.errors import BuildError
from envspec.matrix import Project
from envspec.paths import cache_dir
from envspec.plan import SOURCE_DATE_EPOCH, Plan, ref_name

#: Settings of this machine's network, by the secret that takes their file's place in a build.
CA_VARIABLE = "SSL_CERT_FILE"


def existing(made: Plan) -> oci.Image | None:
    """The image of this plan, when it was built before."""
    found = oci.read_image(ref_name(made))
    if found is None:
        return None
    return found if oci.labels(found).items() >= made.labels.items() else None


def build(project: Project, made: Plan, engine: Engine, console: Console) -> oci.Image:
    """Build the plan's Dockerfile and take the result into the layout.

    Raises:
        EngineError: there is no buildx.
        BuildError: the build fails; the message has its last lines.
    """
    if found := existing(made):
        return found
    engine.plugin("buildx")
    cache_dir().mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="buildx-", dir=cache_dir()))
    try:
        file = project.dockerfile_path(made.row_name, made.target_name)
        argv = engine.cli(
            "buildx", "build", "--file", file, "--progress", "plain", "--provenance=false",
            "--build-arg", f"SOURCE_DATE_EPOCH={SOURCE_DATE_EPOCH}",
            "--output", f"type=oci,tar=false,dest={folder},rewrite-timestamp=true,"
            f"compression=zstd,compression-level={oci.ZSTD_LEVEL},force-compression=true",
            *_network(engine), project.root,
        )
        console.say("   building by BuildKit; the log has its progress")
        console.run(
            argv, error=BuildError, env=engine.environ(),
            what=f"{file.name} does not build",
            remedy="read the step that failed above",
        )
        return _adopt(folder, ref_name(made))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _network(engine: Engine) -> list[str]:
    """What the build needs of this machine's network, as secrets."""
    words = ["--network", "host", "--allow", "network.host"] if engine.embedded else []
    if bundle := os.environ.get(CA_VARIABLE):
        words += ["--secret", f"id=ca,src={bundle}"]
    return words


def _adopt(folder: Path, name: str) -> oci.Image:
    """Move an image from a layout of its own into ours."""
    entry = json.loads((folder / "index.json").read_text())["manifests"][0]
    for blob in (folder / "blobs" / "sha256").iterdir():
        target = oci.blob_path(blob.name)
        target.parent.mkdir(parents=True, exist_ok=True)
        blob.replace(target)
    oci.list_image(name, oci.Blob(entry["mediaType"], entry["digest"], entry["size"]))
    found = oci.read_image(name)
    if found is None:
        raise BuildError(
            "BuildKit's result is not whole", where=str(folder),
            remedy="run it again; `python build.py clean` first when the disk is full",
        )
    return found
