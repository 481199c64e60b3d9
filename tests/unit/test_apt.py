"""Debian's versions, dependencies, configuration and signatures."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest

from envspec.apt import (
    INDEX,
    Deb,
    Suite,
    index_hash,
    mirrors,
    parse_packages,
    verify_release,
    version_key,
)
from envspec.errors import IntegrityError, UnavailableError


def deb(name: str, depends: str = "", **more: str) -> Deb:
    version = more.pop("version", "1")
    return Deb(
        name, version, f"http://m/debian/pool/{name}.deb", f"{name}.deb", "0" * 64, 1, False,
        depends, more.pop("pre_depends", ""), more.pop("provides", ""), **more,
    )


def names(suite: Suite, *wanted: str) -> str:
    return " ".join(d.name for d in suite.closure(wanted))


# ── Versions ──────────────────────────────────────────────────────────────────────────────────────

#: In ascending order, after deb-version(7) and policy 5.6.12.
ASCENDING = [
    "0~", "0", "0.1", "1.0~~", "1.0~~a", "1.0~", "1.0~rc1-1", "1.0~rc1-2", "1.0", "1.0-1~bpo12+1",
    "1.0-1", "1.0-1+b1", "1.0-1+deb13u1", "1.0-1.1", "1.0-2", "1.0-10", "1.0a", "1.0+dfsg-1",
    "1.0-1-1", "1.0.1", "1.9", "1.10", "1:0.1", "1:0.2~", "2:0",
]


def test_versions_ascend() -> None:
    for low, high in itertools.pairwise(ASCENDING):
        assert version_key(low) < version_key(high), (low, high)


@pytest.mark.parametrize(
    ("a", "b"), [("1.0", "0:1.0"), ("1.0", "1.0-0"), ("1.01", "1.1"), ("1.0-00", "1.0"),
                 ("00:1", "1"), ("1.", "1.0")]
)
def test_equal_versions(a: str, b: str) -> None:
    assert version_key(a) == version_key(b)


@pytest.mark.skipif(not shutil.which("dpkg"), reason="dpkg is the judge")
def test_dpkg_agrees() -> None:
    import subprocess

    for low, high in itertools.pairwise(ASCENDING):
        assert not subprocess.run(["dpkg", "--compare-versions", low, "lt", high]).returncode, (
            low, high,
        )


def test_newest_version_wins_wherever_it_stands() -> None:
    for order in itertools.permutations(["1.9", "1.10", "1.10~rc1"]):
        suite = Suite("s", [deb("a", version=v) for v in order])
        assert suite["a"].version == "1.10"


# ── Dependencies ──────────────────────────────────────────────────────────────────────────────────


def test_closure_follows_depends_and_pre_depends() -> None:
    suite = Suite("s", [
        deb("a", "b (>= 1), c:any [amd64]"), deb("b", pre_depends="d"), deb("c"),
        deb("d", "a"), deb("x"),
    ])
    assert names(suite, "a") == "a b c d"
    assert names(suite) == ""


def test_alternative_that_is_there_anyway_wins() -> None:
    suite = Suite("s", [deb("a", "m | n"), deb("m"), deb("n"), deb("z", "n")])
    assert names(suite, "a") == "a m"
    assert names(suite, "a", "z") == names(suite, "z", "a") == "a n z"


def test_first_alternative_that_exists_is_taken() -> None:
    assert names(Suite("s", [deb("a", "gone | n"), deb("n")]), "a") == "a n"


def test_virtual_packages() -> None:
    debs = [
        deb("a", "mta"), deb("exim", provides="mta (= 1)"),
        deb("zmail", provides="mta", priority="important"),
    ]
    # Priority before name, and in any order of the index.
    for order in itertools.permutations(debs):
        assert names(Suite("s", order), "a") == "a zmail"
    assert names(Suite("s", debs), "a", "exim") == "a exim"


def test_single_virtual_waits_for_what_is_certain() -> None:
    suite = Suite("s", [
        deb("a", "awk, b"), deb("b", "c"), deb("c", "mawk"), deb("gawk", provides="awk"),
        deb("mawk", provides="awk"),
    ])
    assert names(suite, "a") == "a b c mawk"


def test_names_that_are_not_there() -> None:
    suite = Suite("s", [deb("bash"), deb("a", "x | y"), deb("exim", provides="mta")])
    with pytest.raises(UnavailableError) as caught:
        suite.closure(["bsah"])
    assert caught.value.remedy == "did you mean 'bash'?"
    with pytest.raises(UnavailableError, match=r"a depends on x \| y"):
        suite.closure(["a"])
    with pytest.raises(UnavailableError) as caught:
        suite["mta"]
    assert "exim" in caught.value.remedy


def test_parse_packages() -> None:
    text = (
        "Package: bash\nVersion: 5.2-1\nEssential: yes\nDepends: base-files,\n debianutils\n"
        "Description: a: b\n more\nFilename: pool/main/b/bash/bash_5.2-1_amd64.deb\n"
        f"Size: 12\nSHA256: {'a' * 64}\nPriority: required\n\n"
        f"Package: x\nVersion: 1\nFilename: pool/updates/x_1.deb\nSize: 1\nSHA256: {'b' * 64}\n\n"
    )
    bash, x = parse_packages(text, "http://m/debian")
    assert (bash.essential, x.essential) == (True, False)
    assert bash.filename == "bash_5.2-1_amd64.deb"
    assert bash.url == "http://m/debian/pool/main/b/bash/bash_5.2-1_amd64.deb"
    assert bash.official_url == f"http://deb.debian.org/debian/{bash.url.split('debian/')[1]}"
    assert x.official_url == "http://deb.debian.org/debian-security/pool/updates/x_1.deb"
    assert (bash.priority, x.priority) == ("required", "optional")


# ── Mirrors ───────────────────────────────────────────────────────────────────────────────────────

OFFICIAL = ("http://deb.debian.org/debian", "http://deb.debian.org/debian-security")


def write(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_no_configuration_means_debians_own(tmp_path: Path) -> None:
    assert mirrors(tmp_path) == OFFICIAL


def test_mirrors_from_list(tmp_path: Path) -> None:
    write(tmp_path, "sources.list", (
        "# deb http://no/debian trixie main\n"
        "deb-src http://src/debian trixie main\n"
        "deb http://third.example/apt trixie main\n"
        "deb http://contrib/debian trixie contrib\n"
        "deb cdrom:[x]/debian trixie main\n"
        "deb [arch=amd64 signed-by=/k] https://m1/debian/ trixie main contrib\n"
        "deb http://m2/debian trixie main\n"
        "deb http://sec/debian-security trixie-security main\n"
    ))
    assert mirrors(tmp_path) == ("https://m1/debian", "http://sec/debian-security")


def test_mirrors_from_sources(tmp_path: Path) -> None:
    write(tmp_path, "sources.list.d/debian.sources", (
        "# a comment\nTypes: deb deb-src\nURIs: http://m1/debian\n http://m2/debian\n"
        "Suites: trixie trixie-updates\nComponents: main\nSigned-By: /k\n\n"
        "Types: deb\nURIs: http://off/debian-security\nSuites: s\nComponents: main\nEnabled: no\n"
        "\nTypes: deb\nURIs: http://sec/debian-security\nSuites: s\nComponents: main\n"
    ))
    write(tmp_path, "sources.list.d/other.txt", "deb http://no/debian trixie main\n")
    assert mirrors(tmp_path) == ("http://m1/debian", "http://sec/debian-security")
    write(tmp_path, "sources.list", "deb http://first/debian trixie main\n")
    assert mirrors(tmp_path)[0] == "http://first/debian"


# ── Signed metadata ───────────────────────────────────────────────────────────────────────────────


def test_index_hash_is_the_sha256() -> None:
    release = (
        f"MD5Sum:\n {'1' * 32}  10 {INDEX}\nSHA256:\n {'a' * 64}  10 contrib/binary-amd64/x\n"
        f" {'b' * 64} 9472 x{INDEX}\n {'c' * 64}  9472 {INDEX}\n"
    )
    assert index_hash(release) == "c" * 64
    assert index_hash(f" {'1' * 32}  10 {INDEX}\n") is None


@pytest.mark.parametrize(
    "text",
    [
        b"Codename: trixie\n",
        b"",
        b"-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA256\n\nCodename: trixie\n"
        b"-----BEGIN PGP SIGNATURE-----\n\niQ==\n-----END PGP SIGNATURE-----\n",
    ],
)
def test_unsigned_metadata_is_refused(text: bytes) -> None:
    with pytest.raises(IntegrityError) as caught:
        verify_release(text, "trixie", now=0.0)
    assert caught.value.where == "InRelease of trixie"


@pytest.fixture
def signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Texts pass for signed: a gpgv that says what the test wants it to."""

    def make(text: str, status: str = "GOODSIG") -> bytes:
        program = tmp_path / "bin" / "gpgv"
        program.parent.mkdir(exist_ok=True)
        lines = "".join(f"echo '[GNUPG:] {word} x'\n" for word in status.split())
        # gpgv --keyring K --status-fd 1 --output RELEASE SIGNED
        program.write_text(f'#!/bin/sh\n{lines}cp "$7" "$6"\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
        return text.encode()

    return make


def test_what_is_signed_must_be_right(signed) -> None:
    text = "Codename: trixie\nValid-Until: Sat, 01 Jan 2000 00:00:00 UTC\n"
    assert verify_release(signed(text), "trixie", now=946684799.0) == text
    with pytest.raises(IntegrityError, match="out of date"):
        verify_release(signed(text), "trixie", now=946684801.0)
    with pytest.raises(IntegrityError, match="another suite"):
        verify_release(signed(text), "bookworm", now=0.0)
    # One good signature is enough beside an unknown key, not beside a bad signature.
    assert verify_release(signed(text, "ERRSIG GOODSIG"), "trixie", now=0.0)
    for status in ("GOODSIG BADSIG", "ERRSIG", "EXPKEYSIG", "REVKEYSIG"):
        with pytest.raises(IntegrityError, match="not signed by Debian"):
            verify_release(signed(text, status), "trixie", now=0.0)


def test_without_gpgv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(IntegrityError) as caught:
        verify_release(b"", "trixie", now=0.0)
    assert "gpgv" in caught.value.remedy
