"""Downloads: in parallel, kept by hash, and never used unless the hash is the locked one."""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx

from envspec.console import Advance, Console
from envspec.errors import IntegrityError, SpaceError, UnavailableError
from envspec.lock import Artifact
from envspec.paths import cache_dir

#: More streams than this gained nothing on a 1 Gbit/s link with PyPI's CDN.
STREAMS = 6
#: A mirror that answers 5xx or breaks off is asked again after these pauses (seconds).
PAUSES = (1.0, 3.0)
CHUNK = 1 << 20


def client() -> httpx.Client:
    """An HTTP client that follows redirects and honours proxies and SSL_CERT_FILE."""
    return httpx.Client(follow_redirects=True, timeout=httpx.Timeout(60, connect=15))


def path_of(artifact: Artifact) -> Path:
    """Where an artifact lies once it was fetched."""
    digest = artifact.sha256
    return cache_dir() / "downloads" / digest[:2] / digest / artifact.filename


def missing(artifacts: Sequence[Artifact]) -> list[Artifact]:
    """Those that were not fetched yet."""
    return [a for a in artifacts if not path_of(a).exists()]


def fetch(artifacts: Sequence[Artifact], console: Console) -> dict[str, Path]:
    """Fetch what is not here yet.

    Returns:
        The path of each artifact by its sha256 (hex). A file is there whole and verified or
        not at all.

    Raises:
        UnavailableError: a mirror refuses, or breaks off more often than it is asked again.
        IntegrityError: the bytes have another hash than the lock's.
        SpaceError: the disk is full.
    """
    todo = list({a.sha256: a for a in missing(artifacts)}.values())
    if todo:
        lock, stop = threading.Lock(), threading.Event()
        label = f"{len(todo)} downloads"
        with (
            console.progress(label, sum(a.size for a in todo)) as advance,
            client() as http,
            ThreadPoolExecutor(STREAMS) as pool,
        ):

            def counted(n: int) -> None:
                with lock:
                    advance(n)

            jobs = [pool.submit(_fetch_one, http, a, counted, stop) for a in todo]
            try:
                for job in jobs:
                    job.result()
            except BaseException:
                stop.set()
                for job in jobs:
                    job.cancel()
                raise
    return {a.sha256: path_of(a) for a in artifacts}


def _fetch_one(
    http: httpx.Client, artifact: Artifact, advance: Advance, stop: threading.Event
) -> None:
    for pause in PAUSES:
        try:
            _attempt(http, artifact, advance, stop)
            return
        except httpx.HTTPStatusError as error:
            status = error.response.status_code
            if status < 500 and status != httpx.codes.TOO_MANY_REQUESTS:
                raise unavailable(artifact, error) from None
        except httpx.TransportError:
            pass
        time.sleep(pause)
    try:
        _attempt(http, artifact, advance, stop)
    except (httpx.TransportError, httpx.HTTPStatusError) as error:
        raise unavailable(artifact, error) from None


def unavailable(artifact: Artifact, error: httpx.HTTPError) -> UnavailableError:
    """The error for an artifact that a mirror does not give."""
    why = str(error) or type(error).__name__
    if isinstance(error, httpx.HTTPStatusError):
        response = error.response
        why = f"HTTP {response.status_code} {response.reason_phrase} from {response.url.host}"
    remedy = "try again later, or point the index setting at a mirror that has it"
    if artifact.kind == "deb":
        remedy = "Debian removes superseded packages: `python build.py lock` takes today's"
    return UnavailableError(
        f"{artifact.filename} can't be fetched", where=artifact.url, why=why, remedy=remedy
    )


def _attempt(
    http: httpx.Client, artifact: Artifact, advance: Advance, stop: threading.Event
) -> None:
    path = path_of(artifact)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".partial-", dir=path.parent)
    partial, digest, got = Path(name), hashlib.sha256(), 0
    try:
        with os.fdopen(handle, "wb") as out, http.stream("GET", artifact.url) as response:
            response.raise_for_status()
            for chunk in response.iter_bytes(CHUNK):
                if stop.is_set():
                    return
                out.write(chunk)
                digest.update(chunk)
                got += len(chunk)
                advance(len(chunk))
        if digest.hexdigest() != artifact.sha256:
            raise IntegrityError(
                f"{artifact.filename} is not the file that was locked",
                where=artifact.url,
                why=f"its sha256 is {digest.hexdigest()}, the lock says {artifact.sha256}",
                remedy="the mirror or the way to it changed the bytes: use another mirror; if "
                "upstream replaced the file, `python build.py lock` and read the difference",
            )
        partial.chmod(0o644)
        partial.replace(path)
    except OSError as error:
        raise SpaceError(
            f"{artifact.filename} can't be written",
            where=str(path.parent),
            why=error.strerror or str(error),
            remedy="free some space (`python build.py clean`), or set ENVSPEC_CACHE to a larger "
            "disk",
        ) from None
    finally:
        if got and not path.exists():
            advance(-got)
        with suppress(FileNotFoundError):
            partial.unlink()
