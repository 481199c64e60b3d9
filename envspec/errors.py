"""Every error that ends a run, each with its own exit code.

A message has four parts: what happened, where (file and key, package or probe),
why, and what to do next. An error that cannot say the remedy is not finished.
"""

from __future__ import annotations


class EnvspecError(Exception):
    """Base of all errors that end a run on purpose.

    Args:
        what: one sentence, what happened.
        where: file and key, package, layer or probe.
        why: the cause as far as it is known; may have several lines.
        remedy: what the reader should do next.
    """

    exit_code = 1
    title = "error"

    def __init__(
        self, what: str, *, where: str | None = None, why: str | None = None, remedy: str
    ) -> None:
        super().__init__(what)
        self.what, self.where, self.why, self.remedy = what, where, why, remedy

    def __str__(self) -> str:
        parts = [("", self.what), ("where: ", self.where), ("why: ", self.why)]
        parts.append(("next: ", self.remedy))
        return "\n".join(label + text for label, text in parts if text)


class MatrixError(EnvspecError):
    """matrix.toml, or a name taken from it, is wrong."""

    exit_code, title = 3, "matrix"


class LockError(EnvspecError):
    """Resolution found a conflict, or a committed lock does not match the matrix."""

    exit_code, title = 4, "lock"


class RenderError(EnvspecError):
    """A committed rendered file is stale or a template is broken."""

    exit_code, title = 5, "render"


class UnavailableError(EnvspecError):
    """A pinned artifact, or every row of a target, can't be had from here."""

    exit_code, title = 6, "unavailable"


class IntegrityError(EnvspecError):
    """Bytes do not have the hash or signature that they were promised to have."""

    exit_code, title = 7, "integrity"


class EngineError(EnvspecError):
    """No container engine answers, or it lacks something that is needed."""

    exit_code, title = 8, "engine"


class SpaceError(EnvspecError):
    """Too little disk for what is about to be done."""

    exit_code, title = 9, "disk space"


class BuildError(EnvspecError):
    """The image could not be made."""

    exit_code, title = 10, "build"


class ProbeError(EnvspecError):
    """A probe failed: the image is not published."""

    exit_code, title = 11, "probe"


class PublishError(EnvspecError):
    """The registry refused, broke off, or holds something else than what was pushed."""

    exit_code, title = 12, "publish"


#: Shell convention for a process ended by SIGINT.
INTERRUPTED_EXIT_CODE = 130
