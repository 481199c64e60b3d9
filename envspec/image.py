"""The assembled image in the engine: loaded as it is, never built a second time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress

import requests
from docker import DockerClient
from docker.errors import APIError, DockerException, ImageNotFound

from envspec import oci
from envspec.console import Console
from envspec.engine import Engine
from envspec.errors import EngineError
from envspec.plan import Plan


def local_name(plan: Plan) -> str:
    """The image's name in the engine, for ``docker run``."""
    return f"envspec/{plan.target_name}:{plan.row_name}"


def load(engine: Engine, image: oci.Image, name: str, console: Console) -> str:
    """Have ``image`` in the engine under ``name``.

    Returns:
        Its id there. It is the digest of the manifest or of the configuration, so a container
        of this id runs exactly the bytes of the layout.

    Raises:
        EngineError: the engine refuses it, or made something else of it.
    """
    try:
        with closing(engine.client()) as client:
            before = _id(client, name)
            if before not in (image.digest, image.config.digest):
                _transfer(client, image, name, console)
                _forget(client, before)
            found = _id(client, name)
    except (DockerException, requests.RequestException, OSError) as error:
        raise EngineError(
            "the engine did not take the image", where=name, why=str(error),
            remedy=console.with_log("free some disk (`python build.py clean`), see "
                                    "`python build.py engine status`, and run it again"),
        ) from None
    if found not in (image.digest, image.config.digest):
        raise EngineError(
            "the engine holds another image than it was given", where=name,
            why=f"it has {found}, not {image.digest}",
            remedy="`python build.py engine stop`, then run it again",
        )
    return found


def _transfer(client: DockerClient, image: oci.Image, name: str, console: Console) -> None:
    with console.progress("loading into the engine", image.size) as advance:

        def counted() -> Iterator[bytes]:
            for chunk in oci.archive(image, f"docker.io/{name}"):
                yield chunk
                advance(len(chunk))

        messages = client.api.load_image(counted())  # type: ignore[no-untyped-call]
        for message in messages or ():
            if problem := message.get("error"):
                raise DockerException(problem)


def _id(client: DockerClient, name: str) -> str | None:
    try:
        found: str | None = client.images.get(name).id
    except ImageNotFound:
        return None
    return found


def _forget(client: DockerClient, image_id: str | None) -> None:
    """Remove what the name stood for before, unless a container or another name holds it."""
    if image_id:
        with suppress(APIError):
            client.images.remove(image_id)
