"""Can every pinned artifact of a row be had from here? Asked before anything is built."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import httpx

from envspec.fetch import missing
from envspec.lock import Artifact
from envspec.matrix import RegistryBase
from envspec.plan import Plan

T = TypeVar("T")

#: Seconds for each answer: a row that can't be had must be known in under 15 s.
TIMEOUT = httpx.Timeout(8, connect=4)
#: docker.io is a name, not a host.
_HOSTS = {"docker.io": "registry-1.docker.io"}
_MANIFESTS = (
    "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, "
    "application/vnd.docker.distribution.manifest.list.v2+json, "
    "application/vnd.docker.distribution.manifest.v2+json"
)


@dataclass(frozen=True)
class Missing:
    """An artifact that can't be had from here, and why."""

    artifact: str
    why: str

    def __str__(self) -> str:
        return f"{self.artifact}: {self.why}"


def check(plan: Plan) -> list[Missing]:
    """Ask for every artifact that is not here yet; the answers, bad ones only."""
    with (
        httpx.Client(follow_redirects=True, timeout=TIMEOUT) as http,
        ThreadPoolExecutor(16) as pool,
    ):
        jobs = []
        if isinstance(plan.base, RegistryBase):
            jobs.append(pool.submit(_ask, plan.base.reference, _base, http, plan.base))
        debs = plan.base_lock.debs if plan.base_lock else ()
        files = [a for a in (*plan.lock.artifacts, *debs) if a.kind != "git"]
        commits = [a for a in plan.lock.artifacts if a.kind == "git"]
        jobs += [pool.submit(_ask, f"{a.name} from {a.url}", _commit, http, a) for a in commits]
        # Once something is missing the row is lost: 200 more questions would only take time.
        if found := [m for job in jobs if (m := job.result())]:
            return found
        jobs = [pool.submit(_ask, a.filename, _file, http, a) for a in missing(files)]
        return [m for job in jobs if (m := job.result())]


def _ask(
    name: str, question: Callable[[httpx.Client, T], httpx.Response], http: httpx.Client, of: T
) -> Missing | None:
    try:
        response = question(http, of)
    except httpx.HTTPError as error:
        return Missing(name, f"{type(error).__name__} {error}".strip())
    if response.is_success:
        return None
    return Missing(name, f"HTTP {response.status_code} from {response.url.host}")


def _file(http: httpx.Client, artifact: Artifact) -> httpx.Response:
    return http.head(artifact.url)


def _commit(http: httpx.Client, artifact: Artifact) -> httpx.Response:
    """The repository answers; that it has the commit shows when it is fetched."""
    url = artifact.url.rsplit("@", 1)[0]
    return http.get(f"{url}/info/refs", params={"service": "git-upload-pack"})


def _base(http: httpx.Client, base: RegistryBase) -> httpx.Response:
    """The manifest by digest, with an anonymous token where the registry wants one."""
    host, _, repository = base.image.partition("/")
    scheme = "http" if host.startswith(("localhost", "127.")) else "https"
    url = f"{scheme}://{_HOSTS.get(host, host)}/v2/{repository}/manifests/{base.digest}"
    headers = {"Accept": _MANIFESTS}
    response = http.head(url, headers=headers)
    if response.status_code == httpx.codes.UNAUTHORIZED:
        fields = dict(re.findall(r'(\w+)="([^"]*)"', response.headers.get("www-authenticate", "")))
        if realm := fields.pop("realm", None):
            token = http.get(realm, params=fields).raise_for_status().json()["token"]
            response = http.head(url, headers={**headers, "Authorization": f"Bearer {token}"})
    return response
