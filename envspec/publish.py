"""Publication: the tested image, by digest, read back, and tagged last.

The layout's blobs are pushed as they are, so the digest in the registry is the digest that was
probed. oras moves them: it takes the credentials of ``docker login`` and resumes by blob.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from envspec import debian, oci
from envspec.console import Advance, Console
from envspec.errors import PublishError
from envspec.verdict import Channel, Verdict

#: docker.io is a name, not a host; loopback registries have no TLS.
_LOOPBACK = ("localhost:", "127.0.0.1:")


@dataclass(frozen=True)
class Publication:
    """Where a tested image can be pulled from."""

    #: ``registry/name``, without tag and digest.
    repository: str
    digest: str
    tag: str
    channel: Channel

    @property
    def reference(self) -> str:
        """By digest: what Compose and ``docker pull`` should be given."""
        return f"{self.repository}@{self.digest}"


def tag_of(image: oci.Image, channel: Channel) -> str:
    """The tag, from what the image's own configuration says it is."""
    return f"{oci.labels(image)['dev.envspec.row']}-{channel}"


def published(image: oci.Image, verdict: Verdict, repository: str, console: Console
              ) -> Publication | None:
    """The publication, when the registry already has the image under its tag."""
    channel = verdict.channel
    if channel is None:
        return None
    wanted = Publication(repository, image.digest, tag_of(image, channel), channel)
    done = _oras(["resolve", *_plain(repository), f"{repository}:{wanted.tag}"], console)
    return wanted if done.returncode == 0 and done.stdout.strip() == image.digest else None


def publish(image: oci.Image, verdict: Verdict, repository: str, console: Console) -> Publication:
    """Push by digest, read back, compare, then tag.

    Raises:
        PublishError: the verdict allows no channel or is another image's; the registry refuses,
            breaks off, or holds something else than was pushed. Then no tag was moved.
    """
    channel = verdict.channel
    if channel is None or verdict.digest != image.digest:
        raise PublishError(
            "this image may not be published", where=image.digest,
            why=verdict.summary() if channel is None else f"the verdict is {verdict.digest}'s",
            remedy="`python build.py probe` and read what failed",
        )
    debian.tools(console)
    reference, plain = f"{repository}@{image.digest}", _plain(repository)
    with console.progress(f"pushing to {repository}", image.size) as advance:
        _copy(image, repository, plain, advance, console)
    _read_back(image, reference, plain, console)
    tag = tag_of(image, channel)
    _must(["tag", *plain, reference, tag], f"{reference} can't be tagged {tag}", console)
    if _must(["resolve", *plain, f"{repository}:{tag}"], "the tag can't be read back",
             console).strip() != image.digest:
        raise PublishError(
            f"the tag {tag} stands for another image", where=repository,
            why="somebody else moved it in the same moment",
            remedy="see who else publishes there, then run it again",
        )
    return Publication(repository, image.digest, tag, channel)


def verify(image: oci.Image, verdict: Verdict, repository: str, console: Console) -> Publication:
    """Read the publication back: the tag, the manifest and every blob.

    Raises:
        PublishError: it is not there, or not what was probed.
    """
    found = published(image, verdict, repository, console)
    if found is None:
        raise PublishError(
            "the registry does not have this image under its tag", where=repository,
            why=f"the image that was probed is {image.digest}",
            remedy="`python build.py publish` puts it there",
        )
    _read_back(image, found.reference, _plain(repository), console)
    return found


def write_env(path: Path, publication: Publication, target: str) -> None:
    """Tell Compose which image to take: the last one published, and this target's.

    Other lines of the file stay as they are.
    """
    ours = {
        "ENVSPEC_IMAGE": publication.reference,
        f"ENVSPEC_IMAGE_{target.upper()}": publication.reference,
    }
    before = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    kept = [line for line in before if line.partition("=")[0].strip() not in ours]
    text = "\n".join([*kept, *(f"{key}={value}" for key, value in ours.items())]) + "\n"
    if before == text.splitlines():
        return
    new = path.with_name(path.name + ".partial")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def _copy(
    image: oci.Image, repository: str, plain: list[str], advance: Advance, console: Console
) -> None:
    """``oras cp``, whose lines ``Copied <digest>`` and ``Exists <digest>`` are the progress."""
    sizes = {b.digest.removeprefix("sha256:")[:12]: b.size for b in image.blobs}
    argv = ["cp", "--no-tty", "--from-oci-layout", f"{oci.layout()}@{image.digest}", repository]
    argv += [f.replace("--plain-http", "--to-plain-http") for f in plain]
    program = [str(_program()), *argv]
    console.log("$ " + " ".join(program))
    process = subprocess.Popen(
        program, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, env=dict(os.environ),
    )
    lines = []
    try:
        assert process.stdout
        for line in process.stdout:
            console.log(line.rstrip())
            lines.append(line.rstrip())
            words = line.split()
            if len(words) > 1 and words[0] in ("Copied", "Exists", "Skipped"):
                advance(sizes.pop(words[1], 0))
        code = process.wait()
    finally:
        process.kill()
        process.wait()
        assert process.stdout
        process.stdout.close()
    if code:
        raise _refused("the image can't be pushed", repository, "\n".join(lines[-5:]), console)


def _read_back(image: oci.Image, reference: str, plain: list[str], console: Console) -> None:
    """The registry's manifest is ours byte for byte, and it has every blob in full."""
    text = _must(["manifest", "fetch", *plain, reference], "the manifest can't be read back",
                 console)
    found = "sha256:" + hashlib.sha256(text.encode()).hexdigest()
    wrong = [] if found == image.digest else [f"manifest: {found}, not {image.digest}"]
    repository = reference.partition("@")[0]
    for blob in (*image.layers, image.config):
        told = json.loads(_must(
            ["blob", "fetch", "--descriptor", *plain, f"{repository}@{blob.digest}"],
            "a blob can't be read back", console,
        ))
        if (told["digest"], told["size"]) != (blob.digest, blob.size):
            wrong.append(f"{blob.digest}: {told['size']} bytes, not {blob.size}")
    if wrong:
        raise PublishError(
            "the registry holds something else than was pushed", where=reference,
            why="\n".join(wrong), remedy="the registry or a proxy before it changes what passes: "
            "publish to another one by --registry",
        )


def _plain(repository: str) -> list[str]:
    return ["--plain-http"] if repository.startswith(_LOOPBACK) else []


def _program() -> Path:
    return debian.prefix() / "usr/bin/oras"


def _oras(arguments: list[str], console: Console) -> subprocess.CompletedProcess[str]:
    argv = [str(_program()), *arguments]
    console.log("$ " + " ".join(argv))
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        console.log(done.stderr.rstrip())
    return done


def _must(arguments: list[str], what: str, console: Console) -> str:
    done = _oras(arguments, console)
    if done.returncode:
        raise _refused(what, arguments[-1], done.stderr.strip(), console)
    return done.stdout


def _refused(what: str, where: str, why: str, console: Console) -> PublishError:
    return PublishError(
        what, where=where, why=why,
        remedy=console.with_log(
            "start the registry or log in (`docker login`), then run it again: what is pushed "
            "stays, no tag was moved"
        ),
    )
