"""Images assembled from tiny hand-made wheels: no network, no root, no engine."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard

from envspec import assemble, base, lock, oci
from envspec.console import Console
from envspec.errors import BuildError
from envspec.fetch import path_of
from envspec.lock import Artifact, BaseLock
from envspec.matrix import Project
from envspec.plan import Plan, make

SITE = "opt/venv/lib/python3.13/site-packages"
Wheel = Callable[..., Artifact]


def wheel_bytes(name: str, files: dict[str, bytes]) -> bytes:
    info = f"{name}-1.0.dist-info"
    files = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = [
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()[:-1]},"
        f"{len(data)}\n"
        for path, data in files.items()
    ]
    files[f"{info}/RECORD"] = "".join([*lines, f"{info}/RECORD,,\n"]).encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for path, data in files.items():
            archive.writestr(zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0)), data)
    return out.getvalue()


@pytest.fixture
def wheel(artifact) -> Wheel:
    """A wheel that lies among the downloads."""

    def make(name: str, files: dict[str, bytes] | None = None) -> Artifact:
        data = wheel_bytes(name, files or {f"{name}.py": b"x = 1\n"})
        found = artifact(name, data)
        path = path_of(found)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return found

    return make


def layer_of(console: Console, *wheels: Artifact) -> oci.LayerBlob:
    return oci.write_layer(
        lambda tar: assemble._wheels(tar, wheels, "3.13", assemble.threading.Event(), console)
    )


def contents(layer: oci.Blob) -> list[tuple[tarfile.TarInfo, bytes]]:
    data = zstandard.ZstdDecompressor().decompressobj().decompress(
        oci.blob_path(layer.digest).read_bytes()
    )
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return [(m, tar.extractfile(m).read() if m.isreg() else b"") for m in tar]  # type: ignore[union-attr]


def files(layer: oci.Blob) -> dict[str, bytes]:
    return {m.name: data for m, data in contents(layer) if m.isreg()}


# ── Layers of wheels ──────────────────────────────────────────────────────────────────────────────


def test_same_wheels_make_the_same_bytes(
    wheel: Wheel, console: Console, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = layer_of(console, wheel("a"), wheel("b"))
    monkeypatch.setenv("ENVSPEC_CACHE", str(tmp_path / "elsewhere"))
    assert layer_of(console, wheel("a"), wheel("b")) == first


def test_where_files_go(wheel: Wheel, console: Console) -> None:
    layer = layer_of(console, wheel("a", {
        "a/__init__.py": b"x",
        "a-1.0.data/scripts/tool": b"#!python\nprint(1)\n",
        "a-1.0.data/data/share/doc.txt": b"d",
        "a-1.0.data/headers/a.h": b"h",
        "a-1.0.dist-info/entry_points.txt": b"[console_scripts]\ncmd = a:main\n",
    }))
    found = files(layer)
    assert found[f"{SITE}/a/__init__.py"] == b"x"
    assert found["opt/venv/bin/tool"].startswith(b"#!/opt/venv/bin/python\n")
    assert found["opt/venv/bin/cmd"].startswith(b"#!/opt/venv/bin/python\n")
    assert found["opt/venv/share/doc.txt"] == b"d"
    assert found["opt/venv/include/site/python3.13/a/a.h"] == b"h"
    assert found[f"{SITE}/a-1.0.dist-info/INSTALLER"] == b"envspec\n"
    record = found[f"{SITE}/a-1.0.dist-info/RECORD"].decode()
    assert "../../../bin/cmd,sha256=" in record
    modes = {m.name: m.mode for m, _ in contents(layer)}
    assert modes["opt/venv/bin/tool"] == modes["opt/venv/bin/cmd"] == 0o755
    assert modes[f"{SITE}/a/__init__.py"] == 0o644


@pytest.mark.parametrize(
    "path",
    ["../../../../../../etc/passwd", "a-1.0.data/data/../../../etc/passwd",
     "a-1.0.data/data/../venv2/x", "a-1.0.data/scripts/../../../x", "/etc/passwd"],
)
def test_wheel_that_writes_outside_is_refused(wheel: Wheel, console: Console, path: str) -> None:
    bad = wheel("a", {path: b"x"})
    with pytest.raises(BuildError):
        layer_of(console, bad)
    blobs = oci.layout() / "blobs" / "sha256"
    assert not list(blobs.iterdir())


def test_wheel_that_is_no_wheel(wheel: Wheel, console: Console) -> None:
    bad = wheel("a")
    path_of(bad).write_bytes(b"not a zip file")
    with pytest.raises(BuildError) as caught:
        layer_of(console, bad)
    assert bad.filename in str(caught.value)
    path_of(bad).write_bytes(wheel_bytes("other", {}))
    with pytest.raises(BuildError):
        layer_of(console, bad)


def test_file_of_two_wheels_is_written_once(wheel: Wheel, console: Console) -> None:
    layer = layer_of(
        console, wheel("a", {"ns/__init__.py": b"same"}), wheel("b", {"ns/__init__.py": b"same"})
    )
    names = [m.name for m, _ in contents(layer)]
    assert names.count(f"{SITE}/ns/__init__.py") == 1
    assert len(names) == len(set(names))


def test_later_wheel_wins_and_the_log_says_so(wheel: Wheel, tmp_path: Path) -> None:
    console = Console(tmp_path / "log", stderr=io.StringIO())
    layer = layer_of(
        console, wheel("a", {"ns/x.py": b"first"}), wheel("b", {"ns/x.py": b"second"})
    )
    assert files(layer)[f"{SITE}/ns/x.py"] == b"second"
    assert "ns/x.py is in two wheels" in (tmp_path / "log").read_text()


# ── Recipes and whole images ──────────────────────────────────────────────────────────────────────


@pytest.fixture
def plan_of(project: Project, monkeypatch: pytest.MonkeyPatch, cache: Path):
    """A plan of torch and another wheel, on a base that is one file."""
    (project.root / "runtime").mkdir()
    (project.root / "runtime" / "r.py").write_text("r = 1\n")

    def rootfs(lock: BaseLock, debs: Path, root: Path, console: Console) -> None:
        (root / "etc").mkdir(parents=True)
        (root / "etc" / "debs").write_text(" ".join(sorted(p.name for p in debs.iterdir())))
        (root / "bin").symlink_to("usr/bin")

    monkeypatch.setattr(base, "make_rootfs", rootfs)
    deb = Artifact(
        "bash", "1", "deb", "bash_1.deb", "http://m/bash_1.deb", hashlib.sha256(b"d").hexdigest(),
        1, "",
    )
    path_of(deb).parent.mkdir(parents=True)
    path_of(deb).write_bytes(b"d")
    path = project.base_lock_path("debian")
    path.parent.mkdir(parents=True)
    path.write_text(
        f"# suite: trixie\n# packages: bash gcc\n{deb.sha256}  1  bash  1  {deb.url}\n"
    )

    def plan(*wheels: Artifact) -> Plan:
        lock.write(
            project.lock_path("new", "cpu"), lock.inputs(project, "new", "cpu"),
            sorted(wheels, key=lambda a: a.name),
        )
        return make(project, "new", "cpu")

    return plan


def changed(a: Plan, b: Plan) -> set[str]:
    old, new = assemble.recipes(a), assemble.recipes(b)
    return {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}


def test_recipe_changes_for_the_layer_whose_wheel_changed(wheel: Wheel, plan_of) -> None:
    torch, vllm, new = wheel("torch"), wheel("vllm"), wheel("vllm", {"v.py": b"2"})
    before = plan_of(torch, vllm)
    assert list(assemble.recipes(before)) == ["base", "environment", "torch", "rest", "runtime"]
    assert changed(before, plan_of(torch, vllm)) == set()
    assert changed(before, plan_of(torch, new)) == {"rest"}
    assert changed(before, plan_of(wheel("torch", {"t.py": b"2"}), vllm)) == {"torch"}
    assert changed(before, plan_of(torch, vllm, wheel("z"))) == {"rest"}


def test_recipe_of_base_and_runtime(wheel: Wheel, plan_of, project: Project) -> None:
    before = plan_of(wheel("torch"), wheel("vllm"))
    (project.root / "runtime" / "r.py").write_text("r = 2\n")
    assert changed(before, plan_of(wheel("torch"), wheel("vllm"))) == {"runtime"}
    assert before.base_lock is not None
    other = replace(before.base_lock.debs[0], sha256="f" * 64)
    plan = replace(before, base_lock=replace(before.base_lock, debs=(other,)))
    assert changed(before, plan) == {"base"}


def test_same_image_from_an_empty_cache(
    wheel: Wheel, plan_of, project: Project, console: Console, cache: Path
) -> None:
    plan = plan_of(wheel("torch"), wheel("vllm"))
    first = assemble.assemble(project, plan, console)
    assert assemble.assemble(project, plan, console).digest == first.digest
    for path in [*(cache / "layers").iterdir(), *(cache / "layout").rglob("*")]:
        if path.is_file():
            path.unlink()
    assert assemble.assemble(project, plan, console).digest == first.digest
    found = oci.read_image(assemble.ref_name(plan))
    assert found is not None and found.digest == first.digest
    assert not list(cache.glob("base-*"))


def test_only_the_changed_layer_is_made_again(
    wheel: Wheel, plan_of, project: Project, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = assemble.assemble(project, plan_of(wheel("torch"), wheel("vllm")), console)
    made: list[oci.LayerBlob] = []
    real = assemble.write_layer
    monkeypatch.setattr(
        assemble, "write_layer", lambda fill: made.append(real(fill)) or made[-1]
    )
    plan = plan_of(wheel("torch"), wheel("vllm", {"v.py": b"2"}))
    second = assemble.assemble(project, plan, console)
    assert len(made) == 1
    differ = [n for n, (a, b) in enumerate(zip(first.layers, second.layers, strict=True)) if a != b]
    assert differ == [3]


def test_layer_that_was_cut_short_is_made_again(
    wheel: Wheel, plan_of, project: Project, console: Console
) -> None:
    plan = plan_of(wheel("torch"), wheel("vllm"))
    first = assemble.assemble(project, plan, console)
    oci.blob_path(first.layers[2].digest).write_bytes(b"")
    assert assemble.assemble(project, plan, console) == first
    assert oci.has(first.layers[2])


def test_what_is_in_the_image(wheel: Wheel, plan_of, project: Project, console: Console) -> None:
    image = assemble.assemble(project, plan_of(wheel("torch"), wheel("vllm")), console)
    root, environment, torch, rest, runtime = image.layers
    assert files(root) == {"etc/debs": b"bash_1.deb"}
    links = {m.name: m.linkname for m, _ in contents(environment) if m.issym()}
    assert links["opt/venv/bin/python"] == "/usr/bin/python3.13"
    assert b"version = 3.13" in files(environment)["opt/venv/pyvenv.cfg"]
    assert f"{SITE}/torch.py" in files(torch)
    assert f"{SITE}/vllm.py" in files(rest)
    assert files(runtime) == {"opt/envspec/r.py": b"r = 1\n"}
    config = json.loads(oci.blob_path(image.config.digest).read_bytes())["config"]
    assert config["Labels"]["dev.envspec.row"] == "new"
    assert "VIRTUAL_ENV=/opt/venv" in config["Env"]


def test_what_needs_a_dockerfile(wheel: Wheel, plan_of, project: Project) -> None:
    plan = plan_of(wheel("torch"))
    assert assemble.can_assemble(plan)
    assert not assemble.can_assemble(replace(plan, base=project.matrix.bases["cuda"]))
    git = Artifact("v", "1", "git", "", "https://x/v.git@" + "c" * 40, "", 0, "")
    assert not assemble.can_assemble(replace(plan, lock=replace(plan.lock, artifacts=(git,))))
