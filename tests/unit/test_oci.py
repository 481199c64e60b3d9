"""Layers, images and archives on disk."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest
import zstandard

from envspec import oci
from envspec.errors import SpaceError
from envspec.plan import SOURCE_DATE_EPOCH


def fill(tar: oci.LayerTar) -> None:
    tar.file("/opt/venv/b.txt", io.BytesIO(b"hello"), 5, 0o644, (0, 0))
    tar.file("opt/venv/run", io.BytesIO(b"#!"), 2, 0o755, (1000, 1000))
    tar.link("opt/venv/link", "b.txt")
    tar.link("opt/venv/hard", "opt/venv/b.txt", hard=True)
    tar.folder("home/x", 0o700, (1000, 1000))


def members(layer: oci.Blob) -> list[tarfile.TarInfo]:
    data = zstandard.ZstdDecompressor().decompressobj().decompress(
        oci.blob_path(layer.digest).read_bytes()
    )
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return tar.getmembers()


def test_layer_is_deterministic(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = oci.write_layer(fill)
    monkeypatch.setenv("ENVSPEC_CACHE", str(tmp_path / "other"))
    assert oci.write_layer(fill) == first
    assert oci.has(first)
    # Nothing but the layer and the marker is left.
    left = {p.name for p in oci.layout().rglob("*") if p.is_file()}
    assert left == {"oci-layout", first.digest.removeprefix("sha256:")}


def test_layer_is_normalised() -> None:
    found = {m.name: m for m in members(oci.write_layer(fill))}
    assert list(found) == [
        "opt", "opt/venv", "opt/venv/b.txt", "opt/venv/run", "opt/venv/link", "opt/venv/hard",
        "home", "home/x",
    ]
    assert {m.mtime for m in found.values()} == {SOURCE_DATE_EPOCH}
    assert {(m.uname, m.gname) for m in found.values()} == {("", "")}
    assert (found["opt"].mode, found["opt"].uid) == (0o755, 0)
    assert (found["home/x"].mode, found["home/x"].uid) == (0o700, 1000)
    assert (found["opt/venv/run"].mode, found["opt/venv/run"].gid) == (0o755, 1000)
    assert found["opt/venv/link"].issym()
    assert found["opt/venv/hard"].islnk()


def test_layer_digests() -> None:
    layer = oci.write_layer(fill)
    data = oci.blob_path(layer.digest).read_bytes()
    tar = zstandard.ZstdDecompressor().decompressobj().decompress(data)
    assert layer.digest == "sha256:" + hashlib.sha256(data).hexdigest()
    assert layer.diff_id == "sha256:" + hashlib.sha256(tar).hexdigest()
    assert (layer.size, layer.tar_size) == (len(data), len(tar))


def test_failed_layer_leaves_nothing() -> None:
    def full(tar: oci.LayerTar) -> None:
        fill(tar)
        raise OSError(28, "No space left on device")

    with pytest.raises(SpaceError, match="layer"):
        oci.write_layer(full)
    assert [p.name for p in oci.layout().rglob("*") if p.is_file()] == ["oci-layout"]


def other(tar: oci.LayerTar) -> None:
    tar.file("z", io.BytesIO(b"z"), 1, 0o644, (0, 0))


@pytest.fixture
def image() -> oci.Image:
    layers = [("one", oci.write_layer(fill)), ("two", oci.write_layer(other))]
    return oci.write_image("cpu-new", layers, {"User": "u"}, {"k": "v"})


def test_image_is_read_again(image: oci.Image) -> None:
    found = oci.read_image("cpu-new")
    assert found is not None
    assert found.digest == image.digest
    assert [x.diff_id for x in found.layers] == [x.diff_id for x in image.layers]
    assert found.size == image.size
    assert oci.read_image("other") is None
    config = json.loads(oci.blob_path(image.config.digest).read_bytes())
    assert config["config"] == {"User": "u"}
    assert config["rootfs"]["diff_ids"] == [x.diff_id for x in image.layers]
    assert config["created"] == "2026-01-01T00:00:00Z"


def test_name_moves_to_the_new_image(image: oci.Image) -> None:
    oci.write_image("other", [("one", image.layers[0])], {}, {})
    new = oci.write_image("cpu-new", [("two", image.layers[1])], {}, {})
    assert new.digest != image.digest
    found = oci.read_image("cpu-new")
    assert found is not None and found.digest == new.digest
    assert oci.read_image("other") is not None
    assert len(json.loads((oci.layout() / "index.json").read_text())["manifests"]) == 2


@pytest.mark.parametrize("index", range(4))
@pytest.mark.parametrize("cut", [False, True])
def test_image_with_a_blob_missing_or_cut_short(image: oci.Image, index: int, cut: bool) -> None:
    path = oci.blob_path(image.blobs[index].digest)
    if cut:
        path.write_bytes(path.read_bytes()[:-1])
    else:
        path.unlink()
    assert oci.read_image("cpu-new") is None


def test_written_again_after_damage(image: oci.Image) -> None:
    for blob in (image.config, image.manifest):
        oci.blob_path(blob.digest).write_bytes(b"")
    again = oci.write_image(
        "cpu-new", [("one", image.layers[0]), ("two", image.layers[1])], {"User": "u"}, {"k": "v"}
    )
    assert again.digest == image.digest
    assert oci.read_image("cpu-new") is not None


def test_archive_is_a_readable_oci_tar(image: oci.Image) -> None:
    oci.write_image("other", [("two", image.layers[1])], {}, {})
    data = b"".join(oci.archive(image, "localhost/x:1"))
    assert len(data) % 512 == 0
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        found = {m.name: tar.extractfile(m).read() for m in tar}  # type: ignore[union-attr]
    assert json.loads(found.pop("oci-layout")) == {"imageLayoutVersion": "1.0.0"}
    (entry,) = json.loads(found.pop("index.json"))["manifests"]
    assert entry["digest"] == image.digest
    assert entry["annotations"] == {"io.containerd.image.name": "localhost/x:1"}
    assert set(found) == {b.digest.replace("sha256:", "blobs/sha256/") for b in image.blobs}
    for name, body in found.items():
        assert hashlib.sha256(body).hexdigest() == name.rsplit("/", 1)[1]


def test_archive_has_a_shared_layer_once(image: oci.Image) -> None:
    twice = oci.write_image("t", [("a", image.layers[0]), ("b", image.layers[0])], {}, {})
    with tarfile.open(fileobj=io.BytesIO(b"".join(oci.archive(twice, "x")))) as tar:
        assert len(tar.getnames()) == len(set(tar.getnames())) == 5
