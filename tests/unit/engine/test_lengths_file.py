"""The file of learned lengths: read once for all ranks, written by one, never in the way."""

from __future__ import annotations

import copy
import logging
import pickle
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tokenflow_sgl.contract import LengthPredictor, Traits
from tokenflow_sgl.engine import lengths_file as module
from tokenflow_sgl.engine.config import TokenFlowConfig, build
from tokenflow_sgl.engine.flags import attach
from tokenflow_sgl.engine.lengths_file import (
    INTERVAL,
    LengthsFile,
    attach_lengths,
    known_lengths,
    open_lengths_file,
)
from tokenflow_sgl.policy import ConfigError, make_predictor
from tokenflow_sgl.policy.learned_lengths import LearnedLengths
from tokenflow_sgl.policy.lengths_document import lengths_document, read_lengths

ON = TokenFlowConfig()


def learned(answers: int) -> LearnedLengths:
    made = LearnedLengths()
    for _ in range(answers):
        made.ended(made.kind(Traits(100, 4096, "reading")), 50, cut_off=False)
    return made


def document(answers: int) -> str:
    return lengths_document(learned(answers).evidence())


def record(**given: object) -> SimpleNamespace:
    return SimpleNamespace(
        **{
            **{"dp_size": 1, "nnodes": 1, "enable_hierarchical_cache": True},
            **{"disaggregation_mode": "null", **given},
        }
    )


def count(text: str) -> float:
    return float(read_lengths(text).ended[0].sum())


def answers(args: object, rank: int | None) -> int:
    """What a rank starts from."""
    predictor = known_lengths(args, ON, rank)
    assert isinstance(predictor, LearnedLengths)
    return round(float(predictor.evidence().ended[0].sum()))


def mean(predictor: LengthPredictor) -> float:
    """Tokens that an answer is expected to have."""
    nothing, zero = np.zeros(0, dtype=np.int64), np.zeros(1, dtype=np.int64)
    return float(predictor.lengths(nothing, nothing).typical.left(zero, zero, np.array([4096]))[0])


# ---- reading ------------------------------------------------------------------------


def test_what_was_learned_rides_on_the_record(tmp_path) -> None:
    path = tmp_path / "lengths.json"
    path.write_text(document(7))
    args = record()
    attach(args, build({"lengths_file": str(path)}))
    path.write_text(document(200))  # by another server, or by a rank that is faster
    for rank in (pickle.loads(pickle.dumps(args)), copy.deepcopy(args)):
        assert answers(rank, None) == 7
    assert mean(known_lengths(args, ON, 0)) < 0.5 * mean(make_predictor("learned"))


def careful(predictor: LengthPredictor) -> float:
    """The same, on the safe side, of one for whose client 4,096 are allowed."""
    predictor.kind(Traits(100, 4096))
    nothing, zero = np.zeros(0, dtype=np.int64), np.zeros(1, dtype=np.int64)
    return float(predictor.lengths(nothing, nothing).careful.left(zero, zero, np.array([4096]))[0])


def test_decode_servers_expect_longer_answers_at_first() -> None:
    decoding = record(disaggregation_mode="decode")
    assert careful(known_lengths(decoding, ON, 0)) > 1.2 * careful(known_lengths(record(), ON, 0))
    bold, careful_one = (build({"length_caution": caution}) for caution in (0.5, 0.99))
    assert careful(known_lengths(decoding, bold, 0)) == careful(known_lengths(decoding, ON, 0))
    assert careful(known_lengths(decoding, careful_one, 0)) == careful(
        known_lengths(record(), careful_one, 0)
    )


def test_a_missing_file_says_nothing(tmp_path) -> None:
    args = record()
    attach_lengths(args, str(tmp_path / "lengths.json"))
    assert answers(args, None) == 0
    assert answers(record(), None) == 0, "nor does a record without one"


def test_replicas_have_files_of_their_own(tmp_path) -> None:
    path = tmp_path / "lengths.json"
    path.write_text(document(3))
    path.with_name("lengths.json.dp2").write_text(document(9))
    args = record(dp_size=3)
    attach_lengths(args, str(path))
    assert [answers(args, rank) for rank in range(3)] == [3, 0, 9]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{}", "is no file of learned lengths: its format is not 'tokenflow-lengths'"),
        (b"\xff\xfe", "is no file of learned lengths: it is not text"),
        (b"GIF89a", "is no file of learned lengths: it is not JSON"),
        (None, "cannot be read: Is a directory"),
    ],
)
def test_what_is_none_of_ours_is_refused_at_the_start(tmp_path, content, words) -> None:
    path = tmp_path / "lengths.json"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    args = record()
    with pytest.raises(ConfigError, match=words) as caught:
        attach(args, build({"lengths_file": str(path)}))
    assert str(path) in str(caught.value)
    assert not hasattr(args, "_tokenflow")


def test_a_folder_that_cannot_be_written_is_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module.os, "access", lambda *_: False)  # tests may run as root
    with pytest.raises(ConfigError, match=r"lengths\.json' cannot be written: its folder"):
        attach_lengths(record(), str(tmp_path / "lengths.json"))


def test_it_needs_a_folder_and_learned_lengths(tmp_path) -> None:
    with pytest.raises(ConfigError, match="lengths_file is '/no/such/file'; allowed is a file in"):
        build({"lengths_file": "/no/such/file"})
    with pytest.raises(ConfigError, match="allowed is such a file with learned lengths"):
        build({"lengths_file": str(tmp_path / "x"), "lengths": "limit"})


# ---- writing ------------------------------------------------------------------------


def saved(file: LengthsFile, now: float) -> None:
    """As `save`, and wait for the thread."""
    file.save(now)
    if file._writing is not None:
        file._writing.join()


def test_it_is_written_every_minute_if_answers_have_ended(tmp_path) -> None:
    path, lengths = tmp_path / "lengths.json", learned(0)
    file = LengthsFile(path, lengths, now=1000.0)
    lengths.ended(0, 50, cut_off=False)
    saved(file, 1000.0 + INTERVAL - 1)
    assert not path.exists()
    saved(file, 1000.0 + INTERVAL)
    assert count(path.read_text()) == pytest.approx(1.0)
    path.unlink()
    saved(file, 1000.0 + 3 * INTERVAL)
    assert not path.exists(), "nothing has ended since"
    lengths.ended(0, 50, cut_off=False)
    saved(file, 1000.0 + 3 * INTERVAL)
    assert count(path.read_text()) == pytest.approx(2.0, rel=0.01)
    assert [each.name for each in tmp_path.iterdir()] == ["lengths.json"]


def test_at_the_end_what_is_left_is_written(tmp_path) -> None:
    path, lengths = tmp_path / "lengths.json", learned(0)
    file = LengthsFile(path, lengths, now=0.0)
    file.close()
    assert not path.exists()
    lengths.ended(0, 50, cut_off=False)
    file.close()
    assert count(path.read_text()) == pytest.approx(1.0)


def test_the_scheduler_does_not_wait_for_the_disk(tmp_path, monkeypatch) -> None:
    go = threading.Event()
    sync = module.os.fsync
    monkeypatch.setattr(module.os, "fsync", lambda handle: go.wait(30) and sync(handle))
    path, lengths = tmp_path / "lengths.json", learned(0)
    path.write_text(document(40))
    file = LengthsFile(path, lengths, now=0.0)
    for number in range(1, 4):
        lengths.ended(0, 50, cut_off=False)
        file.save(number * INTERVAL)  # returns though the disk does not answer
    assert count(path.read_text()) == pytest.approx(40, rel=0.1), "the old text until it is done"
    go.set()
    file.close()
    assert count(path.read_text()) == pytest.approx(3.0, rel=0.01)


def test_a_failure_is_logged_once_and_tried_again(tmp_path, caplog) -> None:
    folder = tmp_path / "gone"
    path, lengths = folder / "lengths.json", learned(0)
    file = LengthsFile(path, lengths, now=0.0)
    with caplog.at_level(logging.ERROR):
        for number in (1, 2, 3):
            lengths.ended(0, 50, cut_off=False)
            saved(file, number * INTERVAL)
    (line,) = caplog.messages
    assert str(path) in line
    assert "No such file or directory" in line
    folder.mkdir()
    caplog.clear()
    for number in (4, 5):
        lengths.ended(0, 50, cut_off=False)
        saved(file, number * INTERVAL)
    assert count(path.read_text()) == pytest.approx(5.0, rel=0.01)
    assert caplog.messages == [f"tokenflow: lengths_file {str(path)!r} is written again"]


def test_what_failed_is_written_at_the_end_though_nothing_has_ended_since(tmp_path) -> None:
    folder = tmp_path / "gone"
    path, lengths = folder / "lengths.json", learned(0)
    file = LengthsFile(path, lengths, now=0.0)
    lengths.ended(0, 50, cut_off=False)
    saved(file, INTERVAL)
    folder.mkdir()
    file.close()
    assert count(path.read_text()) == pytest.approx(1.0)
    assert [each.name for each in folder.iterdir()] == ["lengths.json"]


def test_without_another_thread_it_is_tried_again(tmp_path, monkeypatch, caplog) -> None:
    def no_more(thread):
        raise RuntimeError("can't start new thread")

    path, lengths = tmp_path / "lengths.json", learned(0)
    file = LengthsFile(path, lengths, now=0.0)
    lengths.ended(0, 50, cut_off=False)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_more)
        file.save(INTERVAL)
    assert "can't start new thread" in caplog.text
    saved(file, 2 * INTERVAL)
    assert count(path.read_text()) == pytest.approx(1.0)


def test_several_nodes_are_refused(tmp_path) -> None:
    with pytest.raises(ConfigError, match="with 2 nodes; allowed is 1"):
        attach_lengths(record(nnodes=2), str(tmp_path / "lengths.json"))


@pytest.mark.parametrize(
    ("path", "rank", "lengths", "name"),
    [
        ("lengths.json", (0, 0), learned(0), "lengths.json"),
        ("lengths.json", (0, None), learned(0), "lengths.json"),
        ("lengths.json", (0, 1), learned(0), "lengths.json.dp1"),
        ("lengths.json", (1, 0), learned(0), None),  # another rank writes
        ("", (0, 0), learned(0), None),
        ("lengths.json", (0, 0), make_predictor("limit"), None),
    ],
)
def test_one_rank_of_each_replica_writes(path, rank, lengths, name) -> None:
    ranks = SimpleNamespace(attn_tp_rank=rank[0], attn_tp_size=2, attn_cp_rank=0, dp_rank=rank[1])
    file = open_lengths_file(path, ranks, lengths, 0.0)
    assert (None if file is None else file._path) == (name and Path(name).resolve())
