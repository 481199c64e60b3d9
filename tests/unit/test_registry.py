"""The embedded registry's settings."""

from __future__ import annotations

import socket

import pytest

from envspec import registry
from envspec.errors import EngineError


def test_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(registry.PORT_VARIABLE, raising=False)
    assert registry.port() == registry.DEFAULT_PORT
    monkeypatch.setenv(registry.PORT_VARIABLE, "5055")
    assert registry.port() == 5055
    assert registry.status().name == "localhost:5055"
    assert not registry.status().running


@pytest.mark.parametrize("text", ["0", "65536", "-1", "x", "5_0", "\u0665"])
def test_wrong_port(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(registry.PORT_VARIABLE, text)
    with pytest.raises(EngineError) as caught:
        registry.port()
    assert caught.value.where == registry.PORT_VARIABLE


def test_port_of_somebody_else() -> None:
    with socket.socket() as other:
        other.bind((registry.ADDRESS, 0))
        other.listen()
        number = other.getsockname()[1]
        with pytest.raises(EngineError, match=str(number)):
            registry._check_port(number)
    registry._check_port(number)
