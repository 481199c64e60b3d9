"""OCI image layout on disk: blobs by digest, layers, configs, manifests.

https://github.com/opencontainers/image-spec/blob/v1.1.0/image-layout.md
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, cast

import zstandard

from envspec.errors import SpaceError
from envspec.paths import cache_dir
from envspec.plan import SOURCE_DATE_EPOCH

LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+zstd"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
#: zstd 3 made 4.4 GB of a 10.2 GB environment in 48 s on two threads (facts.md). One thread a
#: layer: several layers are compressed at once, and the bytes do not depend on the core count.
ZSTD_LEVEL = 3


@dataclass(frozen=True)
class Blob:
    """A blob of the layout. ``digest`` is ``sha256:<hex>`` of its bytes, ``size`` in bytes."""

    media_type: str
    digest: str
    size: int

    def descriptor(self) -> dict[str, Any]:
        return {"mediaType": self.media_type, "digest": self.digest, "size": self.size}


@dataclass(frozen=True)
class LayerBlob(Blob):
    """``diff_id`` is the digest of the uncompressed tar, ``tar_size`` its size in bytes."""

    diff_id: str
    tar_size: int

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Image:
    """An image of the layout: its manifest, and the blobs that the manifest names."""

    manifest: Blob
    config: Blob
    layers: tuple[LayerBlob, ...]

    @property
    def digest(self) -> str:
        return self.manifest.digest

    @property
    def size(self) -> int:
        """Compressed bytes."""
        return self.manifest.size + self.config.size + sum(x.size for x in self.layers)

    @property
    def tar_size(self) -> int:
        """Uncompressed bytes of the layers."""
        return sum(x.tar_size for x in self.layers)

    @property
    def blobs(self) -> tuple[Blob, ...]:
        return (*self.layers, self.config, self.manifest)


def layout() -> Path:
    """The one layout of this cache; every image's blobs are in it, shared."""
    return cache_dir() / "layout"


def blob_path(digest: str) -> Path:
    return layout() / "blobs" / "sha256" / digest.removeprefix("sha256:")


def has(blob: Blob) -> bool:
    """Whether the blob is here with its full size (blobs are only ever renamed into place)."""
    path = blob_path(blob.digest)
    return path.exists() and path.stat().st_size == blob.size


def write_json(media_type: str, value: Any) -> Blob:
    """Write a canonical JSON document as a blob."""
    data = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    blob = Blob(media_type, digest, len(data))
    if not has(blob):
        with _partial() as partial:
            partial.write_bytes(data)
            partial.replace(blob_path(digest))
    return blob


class LayerTar:
    """Writes a layer: a tar with normalised headers, hashed and compressed as it is written."""

    def __init__(self, sink: Callable[[bytes], Any]) -> None:
        self._sink = sink
        self._hash = hashlib.sha256()
        self.size = 0
        self._tar = tarfile.open(  # noqa: SIM115 (closed by close)
            fileobj=cast(BinaryIO, self), mode="w|", format=tarfile.PAX_FORMAT, bufsize=1 << 20
        )
        self._folders: set[str] = set()

    def write(self, data: bytes) -> int:
        """The tar's own sink."""
        self._hash.update(data)
        self.size += len(data)
        self._sink(data)
        return len(data)

    def header(self, name: str, kind: bytes, mode: int, owner: tuple[int, int]) -> tarfile.TarInfo:
        info = tarfile.TarInfo(name.strip("/"))
        info.type, info.mode, info.mtime = kind, mode, SOURCE_DATE_EPOCH
        info.uid, info.gid = owner
        return info

    def folder(self, name: str, mode: int = 0o755, owner: tuple[int, int] = (0, 0)) -> None:
        """A folder and, before it, those above that the layer does not have yet (root's, 755)."""
        name = name.strip("/")
        if not name or name in self._folders:
            return
        self.folder(os.path.dirname(name))  # noqa: PTH120 (a name in the tar, no path here)
        self._folders.add(name)
        self._tar.addfile(self.header(name, tarfile.DIRTYPE, mode, owner))

    def file(self, name: str, data: Any, size: int, mode: int, owner: tuple[int, int]) -> None:
        """A file from a readable object."""
        self.folder(os.path.dirname(name.strip("/")))  # noqa: PTH120
        info = self.header(name, tarfile.REGTYPE, mode, owner)
        info.size = size
        self._tar.addfile(info, data)

    def link(self, name: str, target: str, *, hard: bool = False) -> None:
        self.folder(os.path.dirname(name.strip("/")))  # noqa: PTH120
        kind = tarfile.LNKTYPE if hard else tarfile.SYMTYPE
        info = self.header(name, kind, 0o777 if not hard else 0o644, (0, 0))
        info.linkname = target
        self._tar.addfile(info)

    def abandon(self) -> None:
        """Write no more: a tar that is not closed would do so when it is collected."""
        self._sink = lambda data: None

    def close(self) -> str:
        """End the tar; its digest."""
        self._tar.close()
        return "sha256:" + self._hash.hexdigest()


def write_layer(fill: Callable[[LayerTar], None]) -> LayerBlob:
    """Make a layer blob of what ``fill`` writes.

    Raises:
        SpaceError: the disk is full; nothing is left of the layer.
    """
    digest = hashlib.sha256()
    try:
        with _partial() as partial:
            with partial.open("wb") as out:

                def sink(data: bytes) -> None:
                    digest.update(data)
                    out.write(data)

                compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL).compressobj()
                tar = LayerTar(lambda data: sink(compressor.compress(data)))
                try:
                    fill(tar)
                    diff_id = tar.close()
                except BaseException:
                    tar.abandon()
                    raise
                sink(compressor.flush())
                size = out.tell()
            name = "sha256:" + digest.hexdigest()
            partial.replace(blob_path(name))
    except OSError as error:
        raise SpaceError(
            "a layer can't be written", where=str(layout()),
            why=error.strerror or str(error),
            remedy="free some space (`python build.py clean`), or set ENVSPEC_CACHE to a larger "
            "disk",
        ) from error
    return LayerBlob(LAYER_TYPE, name, size, diff_id, tar.size)


def write_image(
    name: str,
    layers: Sequence[tuple[str, LayerBlob]],
    config: Mapping[str, Any],
    annotations: Mapping[str, str],
) -> Image:
    """Write config and manifest, and list the image in the layout's index under ``name``.

    Args:
        layers: what made each layer (for its history) and the layer, lowest first.
        config: the ``config`` object of the image configuration (Env, User, Labels…).
    """
    created = _rfc3339(SOURCE_DATE_EPOCH)
    config_blob = write_json(
        CONFIG_TYPE,
        {
            "created": created,
            "architecture": "amd64",
            "os": "linux",
            "config": dict(config),
            "rootfs": {"type": "layers", "diff_ids": [x.diff_id for _, x in layers]},
            "history": [{"created": created, "created_by": text} for text, _ in layers],
        },
    )
    manifest = write_json(
        MANIFEST_TYPE,
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": config_blob.descriptor(),
            "layers": [Blob.descriptor(x) for _, x in layers],
            "annotations": dict(annotations),
        },
    )
    image = Image(manifest, config_blob, tuple(x for _, x in layers))
    list_image(name, manifest)
    return image


def read_image(name: str) -> Image | None:
    """The image listed under a name, when all of it is here."""
    entry = next((m for m in _index() if _ref(m) == name), None)
    if entry is None:
        return None
    manifest = Blob(MANIFEST_TYPE, entry["digest"], entry["size"])
    if not has(manifest):
        return None
    document = json.loads(blob_path(manifest.digest).read_bytes())
    config = _blob(document["config"])
    if not has(config):
        return None
    made = json.loads(blob_path(config.digest).read_bytes())
    layers = tuple(
        LayerBlob(d["mediaType"], d["digest"], d["size"], diff_id, 0)
        for d, diff_id in zip(document["layers"], made["rootfs"]["diff_ids"], strict=True)
    )
    image = Image(manifest, config, layers)
    return image if all(has(b) for b in image.blobs) else None


def labels(image: Image) -> dict[str, str]:
    """The labels in an image's own configuration."""
    config = json.loads(blob_path(image.config.digest).read_bytes())["config"]
    found: dict[str, str] = config.get("Labels") or {}
    return found


def prune(names: Collection[str], layers: Sequence[LayerBlob]) -> None:
    """Remove every image but those of ``names``, and every blob of neither them nor ``layers``."""
    entries = [m for m in _index() if _ref(m) in names]
    images = [image for m in entries if (image := read_image(str(_ref(m))))]
    kept = {b.digest for image in images for b in image.blobs} | {b.digest for b in layers}
    if layout().exists():
        _write_index(entries)
    for path in (layout() / "blobs" / "sha256").glob("*"):
        if f"sha256:{path.name}" not in kept:
            path.unlink()


def archive(image: Image, name: str) -> Iterator[bytes]:
    """The image alone as an OCI archive (a tar), in chunks, named for containerd's import."""
    index = {
        "schemaVersion": 2,
        "mediaType": INDEX_TYPE,
        "manifests": [
            {**image.manifest.descriptor(), "annotations": {"io.containerd.image.name": name}}
        ],
    }
    yield from _member("oci-layout", io.BytesIO(b'{"imageLayoutVersion": "1.0.0"}'))
    yield from _member("index.json", io.BytesIO(json.dumps(index).encode()))
    for blob in {b.digest: b for b in image.blobs}.values():
        with blob_path(blob.digest).open("rb") as data:
            yield from _member(f"blobs/sha256/{blob.digest.removeprefix('sha256:')}", data)
    yield b"\0" * 1024


def _member(name: str, data: BinaryIO) -> Iterator[bytes]:
    """A file of a tar: its header, its bytes, its padding."""
    info = tarfile.TarInfo(name)
    info.size = data.seek(0, os.SEEK_END)
    data.seek(0)
    yield info.tobuf(tarfile.GNU_FORMAT)
    while chunk := data.read(1 << 20):
        yield chunk
    yield b"\0" * (-info.size % tarfile.BLOCKSIZE)


@contextmanager
def _partial() -> Iterator[Path]:
    """A temporary file beside the blobs; gone afterwards unless it was renamed."""
    folder = layout() / "blobs" / "sha256"
    folder.mkdir(parents=True, exist_ok=True)
    marker = layout() / "oci-layout"
    if not marker.exists():
        marker.write_text(json.dumps({"imageLayoutVersion": "1.0.0"}))
    handle, name = tempfile.mkstemp(prefix=".partial-", dir=layout())
    os.close(handle)
    try:
        yield Path(name)
    finally:
        with suppress(FileNotFoundError):
            Path(name).unlink()


def _index() -> list[dict[str, Any]]:
    path = layout() / "index.json"
    try:
        manifests: list[dict[str, Any]] = json.loads(path.read_text())["manifests"]
    except (FileNotFoundError, ValueError, KeyError):
        return []
    return manifests


def _ref(entry: dict[str, Any]) -> str | None:
    name: str | None = entry.get("annotations", {}).get("org.opencontainers.image.ref.name")
    return name


def list_image(name: str, manifest: Blob) -> None:
    """Put a manifest that lies in the layout under a name, in place of what had it."""
    others = [m for m in _index() if _ref(m) != name]
    entry = {
        **manifest.descriptor(), "annotations": {"org.opencontainers.image.ref.name": name}
    }
    _write_index([*others, entry])


def _write_index(manifests: list[dict[str, Any]]) -> None:
    document = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": manifests}
    with _partial() as partial:
        partial.write_text(json.dumps(document, indent=1))
        partial.replace(layout() / "index.json")


def _blob(descriptor: dict[str, Any]) -> Blob:
    return Blob(descriptor["mediaType"], descriptor["digest"], descriptor["size"])


def _rfc3339(epoch: int) -> str:
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
