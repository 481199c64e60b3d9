"""The root file system of a bootstrap base, made of its locked packages."""

from __future__ import annotations

import os
from pathlib import Path

from envspec.console import Console
from envspec.errors import BuildError
from envspec.lock import BaseLock
from envspec.paths import CHECKOUT
from envspec.plan import SOURCE_DATE_EPOCH

#: The script that also serves Dockerfiles.
SCRIPT = CHECKOUT / "templates" / "bootstrap.sh"
#: Namespaces of its own: no network, and every process and mount ends with the script, which
#: ends with this process.
SANDBOX = ("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork",
           "--kill-child", "--net")


def make_rootfs(lock: BaseLock, debs: Path, root: Path, console: Console) -> None:
    """Make a Debian root in ``root`` (new or empty) from the folder ``debs``.

    The same packages give the same tree: names, modes, owners, times and contents. A tree that
    could not be finished is left where it is.

    Raises:
        BuildError: not root, not the locked packages, or a package that could not be installed.
    """
    if os.geteuid() != 0:
        raise BuildError(
            f"base {lock.base} can't be made by an ordinary user",
            where=str(root),
            why="its files belong to root, and its packages' scripts run inside a chroot",
            remedy="run as root (sudo), or let Docker make the image: docker build -f Dockerfile.*",
        )
    there, wanted = {p.name for p in debs.glob("*.deb")}, {deb.filename for deb in lock.debs}
    if there != wanted:
        raise BuildError(
            f"the packages of base {lock.base} are not the locked ones",
            where=str(debs),
            why="\n".join(
                f"{label}: {', '.join(sorted(names))}"
                for label, names in (("missing", wanted - there), ("not locked", there - wanted))
                if names
            ),
            remedy="remove that folder and build again",
        )
    console.run(
        [*SANDBOX, "sh", SCRIPT, debs, root],
        error=BuildError,
        what=f"base {lock.base} could not be made",
        remedy="read the package's message above; a superseded set is renewed by "
        "`python build.py lock`",
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C",
             "SOURCE_DATE_EPOCH": str(SOURCE_DATE_EPOCH)},
    )
