"""A file of lines on a disk that is full, slow or gone."""

from __future__ import annotations

import json
import logging
import os
import threading
from pathlib import Path

import pytest

from tokenflow_sgl.engine.telemetry import line_file as module
from tokenflow_sgl.engine.telemetry.line_file import LineFile


@pytest.fixture
def lost() -> list[None]:
    return []


@pytest.fixture
def made(tmp_path, lost):
    """A file of lines, and its path."""
    path = tmp_path / "lines"
    file = LineFile(path, lambda: lost.append(None))
    yield file, path
    file.close()


def numbers(path: Path) -> list[int]:
    return [json.loads(line)["number"] for line in path.read_text().splitlines()]


def append(file: LineFile, *what: int) -> None:
    for number in what:
        file.append({"number": number})
    file.close()


def test_lines_come_in_their_order(made, lost) -> None:
    file, path = made
    append(file, *range(100))
    append(file, 100)  # which opens it again
    assert numbers(path) == [*range(101)]
    assert not lost


def test_a_disk_that_has_room_again_is_written_and_that_is_told_once(
    made, lost, caplog, monkeypatch
) -> None:
    file, path = made
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.0)
    path.symlink_to("/dev/full")
    append(file, *range(20))
    assert len(lost) == 20
    path.unlink()
    append(file, 20)
    assert numbers(path) == [20]
    assert [record.levelno for record in caplog.records] == [logging.ERROR], "it may be full again"
    monkeypatch.setattr(module, "QUIET_SECONDS", 0.0)
    append(file, 21, 22)
    assert numbers(path) == [20, 21, 22]
    assert "No space left on device" in caplog.messages[0]
    assert caplog.messages[1:] == [f"tokenflow: {str(path)!r} is written again; 20 lines were lost"]


def test_a_full_disk_is_not_tried_for_every_line(made, lost, monkeypatch) -> None:
    file, path = made
    path.symlink_to("/dev/full")
    append(file, 0)
    path.unlink()
    monkeypatch.setattr(module.time, "monotonic", lambda: file._retry - 0.1)
    append(file, 1)
    assert not path.exists()
    assert len(lost) == 2


def test_a_disk_that_hangs_delays_nothing(made, lost, caplog) -> None:
    file, path = made
    os.mkfifo(path)  # to open it for writing waits for a reader
    more = 7
    # One line is in the hands of the thread that writes, as soon as it has begun.
    for number in range(module.MOST_WAITING + 1 + more):
        file.append({"number": number})
    assert more <= len(lost) <= more + 1
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "the disk does not keep up" in caplog.text
    text: list[str] = []
    reading = threading.Thread(target=lambda: text.append(path.read_text()))
    reading.start()
    file.close()
    reading.join()
    assert len(text[0].splitlines()) + len(lost) == module.MOST_WAITING + 1 + more


def test_half_of_a_line_is_cut_off_before_the_next(made) -> None:
    file, path = made
    whole = json.dumps({"number": 0, "text": "x" * 9000})
    path.write_text(whole + "\n" + whole[:8500])  # a server was killed, or the disk was full
    append(file, 1)
    assert numbers(path) == [0, 1]


def test_a_file_of_half_a_line_becomes_one_of_whole_lines(made) -> None:
    file, path = made
    path.write_text('{"number": 0, "te')
    append(file, 1)
    assert numbers(path) == [1]


def test_files_that_cannot_be_rotated_are_told_once(made, lost, caplog, monkeypatch) -> None:
    file, path = made
    monkeypatch.setattr(file._file, "maxBytes", 100)
    for number in range(1, module.KEPT_FILES + 1):
        full = path.with_name(f"{path.name}.{number}")
        full.mkdir()
        (full / "in the way").touch()
    append(file, *range(30))
    assert lost
    assert len(caplog.records) == 1
    assert numbers(path) == [*range(30 - len(lost))]


def test_a_folder_that_is_gone_is_told_once(tmp_path, lost, caplog) -> None:
    (tmp_path / "gone").mkdir()
    file = LineFile(tmp_path / "gone" / "lines", lambda: lost.append(None))
    (tmp_path / "gone").rmdir()
    append(file, 1, 2)
    assert len(lost) == 2
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "No such file" in caplog.text


def test_no_thread_no_line(made, lost, caplog, monkeypatch) -> None:
    file, _ = made

    def none_left(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none_left)
    append(file, 1, 2)
    assert len(lost) == 2
    assert caplog.text.count("can't start new thread") == 1
