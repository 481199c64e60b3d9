"""Debian packages and their dependencies, from a mirror's signed metadata, without apt."""

from __future__ import annotations

import difflib
import email.utils
import hashlib
import lzma
import re
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from envspec import fetch
from envspec.console import Console
from envspec.errors import IntegrityError, UnavailableError
from envspec.lock import Artifact
from envspec.paths import cache_dir

#: Debian's front of its mirror network: what locks name, and the default where none is configured.
OFFICIAL = "http://deb.debian.org"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
SOURCES = Path("/etc/apt")
#: The one index that is read of each suite.
INDEX = "main/binary-amd64/Packages.xz"
#: How long a suite's InRelease is used before the mirror is asked again (seconds).
FRESH = 6 * 3600

_PRIORITIES = ("required", "important", "standard", "optional", "extra")
_FIELDS = {
    "Package", "Version", "Filename", "SHA256", "Size", "Essential", "Priority",
    "Depends", "Pre-Depends", "Provides",
}


@dataclass(frozen=True)
class Deb:
    """One binary package. ``size`` is in bytes, ``sha256`` hex, ``filename`` without folders."""

    name: str
    version: str
    url: str
    filename: str
    sha256: str
    size: int
    essential: bool
    depends: str
    pre_depends: str
    provides: str
    priority: str = "optional"

    def artifact(self) -> Artifact:
        return Artifact(
            name=self.name, version=self.version, kind="deb", filename=self.filename,
            url=self.url, sha256=self.sha256, size=self.size, wheel_sha256=self.sha256,
        )

    @property
    def official_url(self) -> str:
        """The same file on deb.debian.org. The security archive's pool begins with ``updates``."""
        path = self.url[self.url.rindex("/pool/") :]
        archive = "debian-security" if path.startswith("/pool/updates/") else "debian"
        return f"{OFFICIAL}/{archive}{path}"


class Suite:
    """The newest version of every package of a suite with its security fixes and updates."""

    def __init__(self, name: str, debs: Iterable[Deb]) -> None:
        self.name = name
        self._debs: dict[str, Deb] = {}
        for deb in debs:
            known = self._debs.get(deb.name)
            if known is None or version_key(deb.version) > version_key(known.version):
                self._debs[deb.name] = deb
        self._providers: dict[str, list[str]] = {}
        # Of several providers, the one that Debian installs by default comes first.
        for deb in sorted(self._debs.values(), key=lambda d: (_rank(d.priority), d.name)):
            for virtual in _names(deb.provides):
                self._providers.setdefault(virtual, []).append(deb.name)

    @classmethod
    def read(cls, suite: str, console: Console) -> Suite:
        """Fetch, verify and parse the metadata of ``suite``, its -updates and its -security.

        Raises:
            UnavailableError: the mirror does not answer or has no such suite.
            IntegrityError: wrong signature, wrong hash, or metadata past its ``Valid-Until``.
        """
        archive, security = mirrors(SOURCES)
        parts = ((archive, suite), (archive, f"{suite}-updates"), (security, f"{suite}-security"))
        with fetch.client() as client:
            texts = [(mirror, _packages(client, mirror, part, console)) for mirror, part in parts]
        return cls(suite, (deb for mirror, text in texts for deb in parse_packages(text, mirror)))

    def __getitem__(self, name: str) -> Deb:
        """The newest version of a package.

        Raises:
            UnavailableError: the suite has no package of that name; with the nearest name.
        """
        if name in self._debs:
            return self._debs[name]
        providers = self._providers.get(name, [])
        close = difflib.get_close_matches(name, self._debs, n=1, cutoff=0.6)
        raise UnavailableError(
            f"Debian {self.name} has no package {name!r}",
            where=f"suite {self.name}, component main, amd64",
            why=f"it is only provided by {', '.join(providers)}" if providers else None,
            remedy=(f"name one of {', '.join(providers)}" if providers
                    else f"did you mean {close[0]!r}?" if close
                    else "correct the package's name"),
        )

    def essential(self) -> tuple[str, ...]:
        """Names of the packages that every Debian system has."""
        return tuple(sorted(d.name for d in self._debs.values() if d.essential))

    def closure(self, names: Iterable[str]) -> tuple[Deb, ...]:
        """The packages with all that they Depend and Pre-Depend on, sorted by name.

        Where a dependency leaves a choice (``a | b``, or a virtual package), what is selected
        anyway wins, then the first that exists; so the result does not depend on any order.
        Version constraints are not read: within one suite they hold.

        Raises:
            UnavailableError: a name, or every alternative of a dependency, is not in the suite.
        """
        chosen: dict[str, Deb] = {}
        provided: set[str] = set()
        todo = sorted(set(names))
        choices: set[tuple[str, tuple[str, ...]]] = set()
        while True:
            while todo:
                deb = self[todo.pop()]
                if deb.name in chosen:
                    continue
                chosen[deb.name] = deb
                provided.update((deb.name, *_names(deb.provides)))
                for alternatives in _relations(f"{deb.pre_depends},{deb.depends}"):
                    if len(alternatives) == 1 and alternatives[0] in self._debs:
                        todo.append(alternatives[0])
                    else:
                        choices.add((deb.name, alternatives))
            # Only when nothing is certain any more is a choice made, and then one at a time.
            choices = {c for c in choices if provided.isdisjoint(c[1])}
            if not choices:
                return tuple(chosen[name] for name in sorted(chosen))
            todo.append(self._choose(*min(choices)))

    def _choose(self, dependent: str, alternatives: tuple[str, ...]) -> str:
        for name in alternatives:
            if name in self._debs:
                return name
            if name in self._providers:
                return self._providers[name][0]
        raise UnavailableError(
            f"{dependent} depends on {' | '.join(alternatives)}, which Debian {self.name} lacks",
            where=f"suite {self.name}, component main, amd64",
            remedy=f"leave {dependent} out; only the component main is read",
        )


def version_key(version: str) -> tuple[object, ...]:
    """Sort key of a Debian version, after deb-version(7).

    Numbers compare as numbers; in between, ``~`` sorts before the end, the end before letters,
    letters before all else.
    """
    epoch, colon, rest = version.partition(":")
    if not colon:
        epoch, rest = "0", version
    upstream, dash, revision = rest.rpartition("-")
    if not dash:
        upstream, revision = rest, "0"
    return int(epoch), _part_key(upstream), _part_key(revision)


def _part_key(text: str) -> tuple[tuple[tuple[int, ...], int], ...]:
    # The pattern's last match is always empty: it stands for the end.
    return tuple(
        ((*map(_order, letters), 0), int(digits or 0))
        for letters, digits in re.findall(r"([^0-9]*)([0-9]*)", text)
    )


def _order(char: str) -> int:
    return -1 if char == "~" else ord(char) if char.isalpha() else ord(char) + 256


def parse_packages(text: str, mirror: str) -> Iterator[Deb]:
    """The packages of an index; ``mirror`` is the URL that its file names are relative to."""
    for stanza in text.split("\n\n"):
        fields = _fields(stanza)
        if "Package" in fields:
            yield Deb(
                name=fields["Package"],
                version=fields["Version"],
                url=f"{mirror}/{fields['Filename']}",
                filename=fields["Filename"].rsplit("/", 1)[-1],
                sha256=fields["SHA256"],
                size=int(fields["Size"]),
                essential=fields.get("Essential") == "yes",
                depends=fields.get("Depends", ""),
                pre_depends=fields.get("Pre-Depends", ""),
                provides=fields.get("Provides", ""),
                priority=fields.get("Priority", "optional"),
            )


def _fields(stanza: str) -> dict[str, str]:
    """Those of a stanza's fields that are used; none of them has continuation lines."""
    pairs = (line.split(":", 1) for line in stanza.split("\n") if line and line[0] != " ")
    return {p[0]: p[1].strip() for p in pairs if p[0] in _FIELDS}


def _relations(text: str) -> Iterator[tuple[str, ...]]:
    """``a (>= 1), b:any | c`` → ``("a",), ("b", "c")``."""
    for clause in text.split(","):
        names = (re.split(r"[ (:\[]", name.strip(), maxsplit=1)[0] for name in clause.split("|"))
        if found := tuple(name for name in names if name):
            yield found


def _names(provides: str) -> list[str]:
    return [name for clause in _relations(provides) for name in clause]


def _rank(priority: str) -> int:
    return _PRIORITIES.index(priority) if priority in _PRIORITIES else len(_PRIORITIES)


def mirrors(sources: Path) -> tuple[str, str]:
    """URLs of the Debian archive and the security archive that an apt configuration names.

    Third parties also call their suites bookworm and their components main, so a mirror is
    recognised by its path, which ends in ``/debian`` or ``/debian-security``.
    """
    found = {"debian": f"{OFFICIAL}/debian", "debian-security": f"{OFFICIAL}/debian-security"}
    files = [sources / "sources.list", *sorted((sources / "sources.list.d").glob("*"))]
    # Reversed: of several mirrors, the first that is configured is used, as apt would.
    for file in reversed([f for f in files if f.suffix in (".list", ".sources") and f.is_file()]):
        for uri in reversed(_uris(file)):
            parts = urlsplit(uri)
            kind = parts.path.rstrip("/").rsplit("/", 1)[-1]
            if parts.scheme in ("http", "https") and kind in found:
                found[kind] = uri.rstrip("/")
    return found["debian"], found["debian-security"]


def _uris(file: Path) -> list[str]:
    """URIs of the component main in a one-line (.list) or deb822 (.sources) file."""
    text = re.sub(r"(?m)^\s*#.*\n?", "", file.read_text(encoding="utf-8", errors="replace"))
    if file.suffix == ".list":
        lines = re.findall(r"(?m)^deb\s+(?:\[[^\]]*\]\s*)?(\S+)\s+\S+\s+(.*)$", text)
        return [uri for uri, components in lines if "main" in components.split()]
    found: list[str] = []
    for stanza in re.split(r"\n\s*\n", text):
        fields = {
            key.lower(): value.split()
            for key, value in re.findall(r"(?m)^([\w-]+):((?:.*)(?:\n[ \t].*)*)", stanza)
        }
        if "deb" in fields.get("types", []) and "main" in fields.get("components", []):
            found += fields.get("uris", []) if fields.get("enabled") != ["no"] else []
    return found


def verify_release(text: bytes, suite: str, *, now: float, keyring: Path = KEYRING) -> str:
    """The signed part of an InRelease file.

    As apt does, it takes one good signature of a known key for enough and no bad one for
    acceptable: suites are signed with the keys of two releases, of which a host may know one.

    Args:
        now: seconds since the epoch, for ``Valid-Until``.

    Raises:
        IntegrityError: not signed by Debian, for another suite, or past its ``Valid-Until``.
    """
    where = f"InRelease of {suite}"
    with tempfile.TemporaryDirectory() as folder:
        signed, release = Path(folder, "InRelease"), Path(folder, "Release")
        signed.write_bytes(text)
        argv = ["gpgv", "--keyring", str(keyring), "--status-fd", "1", "--output", str(release)]
        try:
            done = subprocess.run([*argv, str(signed)], capture_output=True, check=False)
        except FileNotFoundError:
            raise IntegrityError(
                "Debian's signature cannot be checked", where=where, why="there is no gpgv",
                remedy="apt-get install gpgv debian-archive-keyring",
            ) from None
        status = set(re.findall(rb"(?m)^\[GNUPG:\] ([A-Z]+)", done.stdout))
        if b"GOODSIG" not in status or b"BADSIG" in status or not release.exists():
            why = done.stderr.decode(errors="replace").strip()
            raise IntegrityError(
                "the mirror's metadata is not signed by Debian", where=where, why=why,
                remedy="apt-get install debian-archive-keyring for newer keys; if they are there, "
                "do not use this mirror",
            )
        verified = release.read_text(encoding="utf-8")
    codename = _release_field(verified, "Codename")
    if codename != suite:
        raise IntegrityError(
            "the mirror's metadata is of another suite", where=where,
            why=f"its Codename is {codename!r}", remedy="do not use this mirror",
        )
    if until := _release_field(verified, "Valid-Until"):
        expires = email.utils.parsedate_to_datetime(until).timestamp()
        if now > expires:
            raise IntegrityError(
                "the mirror's metadata is out of date", where=where,
                why=f"it was valid until {until}",
                remedy="use a mirror that is kept up to date, and check this machine's clock",
            )
    return verified


def index_hash(release: str) -> str | None:
    """sha256 (hex) of ``INDEX`` in a Release file."""
    # Only SHA256 sums have 64 digits, whatever section they stand in.
    found = re.search(rf"(?m)^ ([0-9a-f]{{64}}) +\d+ {re.escape(INDEX)}$", release)
    return found[1] if found else None


def _release_field(release: str, name: str) -> str | None:
    found = re.search(rf"(?m)^{name}: (.*)$", release)
    return found[1].strip() if found else None


def _packages(client: httpx.Client, mirror: str, suite: str, console: Console) -> str:
    """Text of a suite's verified index. Cached files are verified like fresh ones."""
    folder = cache_dir() / "apt"
    folder.mkdir(parents=True, exist_ok=True)
    base = f"{mirror}/dists/{suite}"
    kept = folder / f"{suite}.InRelease"
    now = time.time()
    release = None
    if kept.exists() and now - kept.stat().st_mtime < FRESH:
        with suppress(IntegrityError):
            release = verify_release(kept.read_bytes(), suite, now=now)
    if release is None:
        console.log(f"reading {base}/InRelease")
        text = _get(client, f"{base}/InRelease")
        release = verify_release(text, suite, now=now)
        _write(kept, text)
    wanted = index_hash(release)
    if not wanted:
        raise UnavailableError(
            f"Debian {suite} has no index {INDEX}", where=f"{base}/InRelease",
            remedy="use a suite that has amd64 packages, such as trixie",
        )
    index = folder / f"{suite}.Packages.xz"
    if not index.exists() or hashlib.sha256(index.read_bytes()).hexdigest() != wanted:
        # By its hash, a file stays available while the mirror replaces InRelease.
        url = f"{base}/{INDEX.rsplit('/', 1)[0]}/by-hash/SHA256/{wanted}"
        data = _get(client, url)
        if (got := hashlib.sha256(data).hexdigest()) != wanted:
            raise IntegrityError(
                f"the package index of {suite} is not what its signed metadata says", where=url,
                why=f"sha256 is {got}", remedy="try again; if it stays, do not use this mirror",
            )
        _write(index, data)
    return lzma.decompress(index.read_bytes()).decode("utf-8")


def _get(client: httpx.Client, url: str) -> bytes:
    try:
        return client.get(url).raise_for_status().content
    except httpx.HTTPError as error:
        raise UnavailableError(
            "the Debian mirror did not serve its metadata", where=url, why=str(error),
            remedy="check the network, the suite's name and the mirror in /etc/apt/sources.list.d",
        ) from None


def _write(path: Path, data: bytes) -> None:
    """Replace a file at once, so that a second process never reads half of it."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as new:
        new.write(data)
    Path(new.name).replace(path)
