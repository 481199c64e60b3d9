"""Background processes: found by their command line, stopped for good."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from envspec import daemon as module
from envspec.daemon import Daemon, Process, end, processes, with_descendants
from envspec.errors import EngineError

SLEEP = "import sys, time\nprint('hello', flush=True)\ntime.sleep(60)\n"
STUBBORN = (
    "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "print('ready', flush=True)\ntime.sleep(60)\n"
)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    """A daemon that runs a script; its configuration file is the script's argument."""
    made: list[Daemon] = []

    def make(script: str = SLEEP, name: str = "d.conf") -> Daemon:
        config = tmp_path / name
        config.write_text("")
        found = Daemon(
            (sys.executable, "-c", script, str(config)), config, tmp_path / f"{name}.log"
        )
        made.append(found)
        return found

    yield make
    for daemon in made:
        if pid := daemon.pid():
            os.kill(pid, signal.SIGKILL)


def wait(condition: Callable[[], object]) -> None:
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def says(daemon: Daemon, text: str) -> Callable[[], bool]:
    return lambda: text in (daemon.last_words() or "")


def test_found_and_stopped(make) -> None:
    daemon = make()
    assert daemon.pid() is None
    pid = daemon.spawn(os.environ)
    daemon.wait_ready(says(daemon, "hello"), 10)
    assert daemon.pid() == pid
    # Another program object finds it too: nothing is remembered but the command line.
    assert Daemon(daemon.argv, daemon.config, daemon.log).pid() == pid
    assert os.getsid(pid) == pid
    daemon.stop()
    assert daemon.pid() is None
    assert not Path(f"/proc/{pid}").exists()
    daemon.stop()


def test_found_before_proc_has_its_command_line(make, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = make()
    pid = daemon.spawn(os.environ)
    with monkeypatch.context() as patch:
        patch.setattr(module, "processes", lambda: iter([Process(pid, os.getpid(), ())]))
        assert daemon.pid() == pid
    daemon.stop()
    assert daemon.pid() is None


def test_other_configuration_is_another_daemon(make) -> None:
    one, two = make(name="one.conf"), make(name="two.conf")
    pid = one.spawn(os.environ)
    one.wait_ready(says(one, "hello"), 10)
    assert two.pid() is None
    two.stop()
    assert one.pid() == pid


def test_same_configuration_of_another_program_is_a_stranger(make) -> None:
    daemon = make()
    daemon.spawn(os.environ)
    daemon.wait_ready(says(daemon, "hello"), 10)
    assert Daemon(("/usr/bin/other", str(daemon.config)), daemon.config, daemon.log).pid() is None


def test_stubborn_process_is_killed(make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(end, "__defaults__", (0.2,))
    daemon = make(STUBBORN)
    daemon.spawn(os.environ)
    daemon.wait_ready(says(daemon, "ready"), 10)
    daemon.stop()
    assert daemon.pid() is None


def test_dying_while_it_starts(make) -> None:
    daemon = make("print('\\n'.join(map(str, range(99)))); raise SystemExit('no such bridge')")
    daemon.spawn(os.environ)
    with pytest.raises(EngineError, match="ended while it started") as caught:
        daemon.wait_ready(lambda: False, 30)
    assert caught.value.where == str(daemon.log)
    assert "no such bridge" in (caught.value.why or "")
    assert len((caught.value.why or "").splitlines()) == module.TAIL


def test_never_ready(make) -> None:
    daemon = make()
    daemon.spawn(os.environ)
    with pytest.raises(EngineError, match="not ready after 0 s"):
        daemon.wait_ready(lambda: False, 0.3)
    assert daemon.pid()


def test_log_of_the_run_before_is_kept(make) -> None:
    daemon = make()
    assert daemon.last_words() is None
    daemon.log.write_text("before")
    daemon.spawn(os.environ)
    daemon.wait_ready(says(daemon, "hello"), 10)
    assert daemon.log.with_suffix(".log.old").read_text() == "before"
    assert daemon.last_words() == "hello"


def test_lock_excludes(make) -> None:
    daemon, order = make(), []

    def second() -> None:
        with daemon.locked():
            order.append("second")

    thread = threading.Thread(target=second)
    with daemon.locked():
        thread.start()
        thread.join(0.1)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]


def test_processes_has_us_and_no_zombies_program() -> None:
    found = {p.pid: p for p in processes()}
    me = found[os.getpid()]
    assert me.parent == os.getppid()
    assert me.argv
    child = subprocess.Popen(["true"])
    try:
        wait(lambda: ") Z" in Path(f"/proc/{child.pid}/stat").read_text())
        zombie = next(p for p in processes() if p.pid == child.pid)
        assert zombie.program == ""
        # It does not run any more, so there is nothing to wait for.
        end([child.pid])
    finally:
        child.wait()


def test_with_descendants() -> None:
    table = [Process(1, 0, ()), Process(5, 1, ()), Process(7, 5, ()), Process(9, 7, ()),
             Process(8, 1, ())]
    assert with_descendants([table[1]], table) == [5, 7, 9]
    assert with_descendants([], table) == []


def test_end_of_what_is_gone_already() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    end([child.pid])
    end([])
