"""KV from one process to another, and nowhere else."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys

import pytest

from tokenflow_sgl_emulator.kv_link import LocalTransferEngine, _path

OTHER = """
import ctypes, sys
from tokenflow_sgl_emulator.kv_link import LocalTransferEngine
engine = LocalTransferEngine("127.0.0.1")
memory = ctypes.create_string_buffer(b"." * 4096, 4096)
at = ctypes.addressof(memory)
engine.register(at, 2048)
print(engine.get_session_id(), at, flush=True)
for line in sys.stdin:
    seen = memory.raw.decode()
    memory.raw = b"." * 4096  # before the answer: what comes after it is seen next time
    print(seen, flush=True)
    if line == "end\\n":
        break
"""


@pytest.fixture(scope="module")
def other():
    """Another process with an engine: its session, address, and a way to look at its memory.

    It imports SGLang, so one does for all tests. What was looked at is wiped.
    """
    child = subprocess.Popen(
        [sys.executable, "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    session, at = child.stdout.readline().split()

    def look(word: str = "look") -> str:
        child.stdin.write(word + "\n")
        child.stdin.flush()
        return child.stdout.readline().rstrip("\n")

    yield session, int(at), look
    child.communicate("end\n")
    assert child.returncode == 0
    assert not _path(session).exists()


@pytest.fixture
def mine():
    """An engine, and 4,096 bytes."""
    memory = ctypes.create_string_buffer(b"abcd" * 1024, 4096)
    return LocalTransferEngine("127.0.0.1"), memory, ctypes.addressof(memory)


def test_pieces_arrive_where_they_are_meant_to_be(mine, other) -> None:
    engine, _memory, at = mine
    session, there, look = other
    assert engine.send_probe(session) == 0
    places = [there + 2 * n for n in range(1024)]  # as many pieces as one call takes, and more
    sources = [at + n for n in range(1024)]
    sent = engine.batch_transfer_sync(session, sources * 2, places * 2, [1] * 2048)
    assert sent == 0
    assert look() == "".join(f"{letter}." for letter in "abcd" * 256) + "." * 2048
    assert engine.transfer_sync(session, at, there, 2048) == 0
    assert look() == "abcd" * 512 + "." * 2048


@pytest.mark.parametrize(("offset", "length"), [(-1, 1), (2048, 1), (0, 2049), (2047, 2)])
def test_nothing_else_is_written(mine, other, offset, length) -> None:
    engine, _memory, at = mine
    session, there, look = other
    assert engine.batch_transfer_sync(session, [at] * 2, [there, there + offset], [1, length]) < 0
    assert look() == "." * 4096, "not even what would be allowed"


def test_what_is_not_there_is_an_error(mine) -> None:
    engine, _memory, at = mine
    for session in ("127.0.0.1:1", "127.0.0.1:../../x", "none"):
        assert engine.transfer_sync(session, at, at, 1) < 0
        assert engine.send_probe(session) < 0


def test_memory_is_taken_back(mine) -> None:
    engine, _memory, at = mine
    assert engine.batch_register([at], [4096]) == 0
    path = _path(engine.get_session_id())
    said = json.loads(path.read_text())
    assert (said["process"], said["memory"]) == (os.getpid(), [[at, 4096]])
    assert path.parent.stat().st_mode & 0o77 == 0
    engine.deregister(at)
    assert json.loads(path.read_text())["memory"] == []


@pytest.fixture(scope="module")
def killed() -> tuple[str, dict]:
    """A session whose process was killed and could not clean up, and what its file said."""
    child = subprocess.Popen(
        [sys.executable, "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    session, _ = child.stdout.readline().split()
    # Before: engines of servers that other tests start meanwhile remove the file of the killed one.
    said = json.loads(_path(session).read_text())
    child.kill()
    child.communicate()
    assert said["process"] == child.pid
    return session, said


def test_what_a_killed_process_said_is_removed(killed) -> None:
    session, said = killed
    _path(session).write_text(json.dumps(said))
    LocalTransferEngine("127.0.0.1")
    assert not _path(session).exists()


def test_a_killed_process_is_not_there(mine, killed) -> None:
    engine, _memory, at = mine
    session, said = killed
    for call in (engine.send_probe, lambda name: engine.transfer_sync(name, at, at, 1)):
        _path(session).write_text(json.dumps(said))
        assert call(session) < 0
        assert not _path(session).exists()


def test_nothing_is_written_to_a_process_that_has_its_number_now(mine, killed) -> None:
    engine, _memory, at = mine
    session, said = killed
    mine_now = {**said, "process": os.getpid(), "memory": [[at, 4096]]}
    _path(session).write_text(json.dumps(mine_now))
    assert engine.send_probe(session) < 0
    _path(session).write_text(json.dumps(mine_now))
    assert engine.transfer_sync(session, at, at + 8, 8) < 0


def test_of_another_containers_processes_nothing_is_known(mine, killed) -> None:
    session, said = killed
    _path(session).write_text(json.dumps({**said, "namespace": 1}))
    LocalTransferEngine("127.0.0.1")
    assert _path(session).exists()
    _path(session).unlink()
