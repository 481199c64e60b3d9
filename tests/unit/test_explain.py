"""uv's proofs, as recorded from uv, become errors in the matrix's terms."""

from __future__ import annotations

import pytest

from envspec.matrix import Project
from envspec.resolve import explain

STANDING = """\
error: No solution found when resolving dependencies
  cause: Because vllm==0.16.0 depends on torch==2.9.1 and you require torch==2.10.0, we can \
conclude that you require vllm==0.16.0 is unusable.
         And because you require vllm==0.16.0, we can conclude that your requirements are \
unsatisfiable.
"""
#: The same in the order that uv chose on another day, and as older versions of uv drew it.
STANDING_2 = """\
error: No solution found when resolving dependencies
  cause: Because vllm==0.16.0 depends on torch==2.9.1 and you require vllm==0.16.0, we can \
conclude that you require torch==2.9.1.
         And because you require torch==2.10.0, we can conclude that your requirements are \
unsatisfiable.
"""
STANDING_3 = """\
  × No solution found when resolving dependencies:
  ╰─▶ Because vllm==0.16.0 depends on torch==2.9.1 and you require
      torch==2.10.0, we can conclude that your requirements are unsatisfiable.
"""
CHAIN = """\
error: No solution found when resolving dependencies
  cause: Because all of:
             starlette>=0.30.0,<=0.41.0
             starlette>=0.41.2,<=0.45.1
         depend on anyio>=3.4.0 and starlette==0.41.1 was yanked (reason: python-multipart \
release was broken), we can conclude that starlette>=0.30.0,<=0.45.1 depends on anyio>=3.4.0.
         And because starlette>=0.45.2,<=0.52.1 depends on anyio>=3.6.2 and \
prometheus-fastapi-instrumentator==7.0.0 depends on starlette>=0.30.0,<1.0.0, we can conclude \
that prometheus-fastapi-instrumentator==7.0.0 depends on anyio>=3.4.0.
         And because you require prometheus-fastapi-instrumentator==7.0.0 and anyio==2.0.0, we \
can conclude that your requirements are unsatisfiable.
"""
GONE = """\
error: No solution found when resolving dependencies
  cause: Because there is no version of vllm==0.16.0 and you require vllm==0.16.0, we can \
conclude that your requirements are unsatisfiable.
"""


@pytest.mark.parametrize("stderr", [STANDING, STANDING_2, STANDING_3])
def test_standing_example(project: Project, stderr: str) -> None:
    error = explain(project, "new", "cpu", stderr)
    assert error.what == "vllm==0.16.0 wants torch==2.9.1, and the row wants torch==2.10.0"
    assert error.where == "matrix.toml: rows.new for target cpu"
    chain, proof = (error.why or "").split("\n")
    assert chain == "chain: row new → vllm==0.16.0 → torch==2.9.1"
    assert proof.startswith("Because vllm==0.16.0 depends on torch==2.9.1")
    assert "an override of vllm with requirement = 'torch==2.10.0'" in error.remedy
    assert "the nearest row is old (torch 2.9.1, vllm 0.16.0)" in error.remedy


def test_chain_over_a_package_that_the_row_does_not_name(make_project) -> None:
    project = make_project(
        ("[rows.new.components.torch]\nversion = \"2.10.0\"",
         "[rows.new.components.anyio]\nversion = \"2.0.0\""),
        ("[rows.new.components.vllm]\nversion = \"0.16.0\"",
         "[rows.new.components.prometheus-fastapi-instrumentator]\nversion = \"7.0.0\""),
        ('breaks = "vllm"', 'breaks = "anyio"'),
    )
    error = explain(project, "new", "cpu", CHAIN)
    assert error.what == (
        "starlette>=0.30.0,<=0.45.1 wants anyio>=3.4.0, and the row wants anyio==2.0.0"
    )
    assert (error.why or "").startswith(
        "chain: row new → prometheus-fastapi-instrumentator==7.0.0 → "
        "starlette>=0.30.0,<=0.45.1 → anyio>=3.4.0\n"
    )
    assert "an override of starlette with requirement = 'anyio==2.0.0'" in error.remedy


def test_requirement_that_the_row_meets_is_not_blamed(project: Project) -> None:
    error = explain(
        project, "new", "cpu",
        "cause: Because foo==1 depends on torch>=2.9 and vllm==0.16.0 depends on torch==2.9.1, "
        "we can conclude that your requirements are unsatisfiable.",
    )
    assert error.what == "vllm==0.16.0 wants torch==2.9.1, and the row wants torch==2.10.0"


def test_conflict_below_the_row(project: Project) -> None:
    error = explain(
        project, "new", "cpu",
        "cause: Because torch==2.10.0 depends on numpy>=2 and vllm==0.16.0 depends on numpy<2, "
        "we can conclude that your requirements are unsatisfiable.",
    )
    assert error.what == "vllm==0.16.0 wants numpy<2, and the row wants something else"
    assert "an override that fixes numpy" in error.remedy


def test_marker_in_a_proof_does_no_harm(project: Project) -> None:
    error = explain(
        project, "new", "cpu", "cause: Because a==1 depends on torch{sys_platform == 'x'}==2.9.1"
    )
    assert "torch{sys_platform" in (error.why or "")


def test_version_that_no_index_has(project: Project) -> None:
    error = explain(project, "new", "cpu", GONE)
    assert error.what == "no index has vllm==0.16.0"
    assert "2026-04-13" in (error.why or "")
    assert "the pin of vllm" in error.remedy


def test_proof_of_another_form_is_shown_as_it_is(make_project) -> None:
    project = make_project(('rows = ["new", "old"]', 'rows = ["new"]'))
    error = explain(project, "new", "cpu", "error: something\n  else")
    assert error.why == "error: something else"
    assert error.remedy == "target cpu has no other row"
