"""Locks: every artifact of a row × target, and of a bootstrap base, with its hash."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Artifact:
    """One file (or commit) that a lock pins.

    ``sha256`` is hex without a prefix and empty for ``git``, where ``url`` ends in
    ``@<commit>``. ``size`` is in bytes, 0 when unknown. ``wheel_sha256`` is, for an sdist,
    the hash of the wheel that it builds to; otherwise it equals ``sha256``.
    """

    name: str
    version: str
    kind: Literal["wheel", "sdist", "git", "deb"]
    filename: str
    url: str
    sha256: str
    size: int
    wheel_sha256: str


@dataclass(frozen=True)
class Lock:
    """A committed lock, read and found to match the matrix."""

    row: str
    target: str
    path: Path
    artifacts: tuple[Artifact, ...]
    #: sha256 (hex) of the file's bytes: the identity of the environment.
    sha256: str


@dataclass(frozen=True)
class BaseLock:
    """The locked packages of a bootstrap base."""

    base: str
    path: Path
    debs: tuple[Artifact, ...]
    sha256: str
