"""Each error has an exit code of its own and four parts."""

from __future__ import annotations

from envspec import errors


def test_exit_codes_are_distinct_and_not_the_shells() -> None:
    classes = [errors.EnvspecError, *errors.EnvspecError.__subclasses__()]
    codes = [c.exit_code for c in classes]
    assert len(classes) > 10
    assert len(set(codes)) == len(codes)
    # 0 is success, 2 is wrong usage (typer), 126 and up are the shell's.
    assert not {0, 2} & set(codes)
    assert max(codes) < 126
    assert len({c.title for c in classes}) == len(classes)


def test_text_has_the_parts_that_are_known() -> None:
    error = errors.LockError("what", where="here", why="because", remedy="do it")
    assert str(error) == "what\nwhere: here\nwhy: because\nnext: do it"
    assert str(errors.LockError("what", remedy="do it")) == "what\nnext: do it"
