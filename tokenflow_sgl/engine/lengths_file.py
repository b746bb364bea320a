"""The file in which learned lengths survive a restart.

It is read once, in the process that launches the server, and its text rides on SGLang's ServerArgs:
each rank starts from the same curves, whatever one of them has written meanwhile. One rank writes,
beside the scheduler's thread, to a file that then takes the place of the last one: a reader sees
the old text or the new one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from pathlib import Path

from tokenflow_sgl.contract import LengthPredictor
from tokenflow_sgl.engine.config import TokenFlowConfig
from tokenflow_sgl.engine.ranks import place_in_group, rank_path
from tokenflow_sgl.engine.sglang.server import ServerArgs
from tokenflow_sgl.engine.sglang.worker import Ranks
from tokenflow_sgl.policy import ConfigError, make_predictor
from tokenflow_sgl.policy.learned_lengths import Evidence, LearnedLengths
from tokenflow_sgl.policy.lengths_document import (
    LengthsDocumentError,
    lengths_document,
    read_lengths,
)

logger = logging.getLogger(__name__)

ATTRIBUTE = "_tokenflow_lengths"
"""Underscore attribute of SGLang's ServerArgs with the texts by data-parallel rank."""
INTERVAL = 60.0
"""Seconds from one writing to the next, at least."""
DECODE_CAUTION = 0.95
"""Least caution with learned lengths on a decode server. Elsewhere prefills let newcomers in one
by one, and the answers under way show meanwhile how long they get. Here a whole burst could join
before any of them has shown anything."""


def attach_lengths(server_args: ServerArgs, path: str) -> None:
    """Put what the files of `path` say on the record; a missing one says nothing.

    Raises:
        ConfigError: A file cannot be read or written, or holds something else; or there are several
            nodes, each with a launching process and perhaps a disk of its own, whose ranks would
            start from different curves.
    """
    if server_args.nnodes > 1:
        raise ConfigError(f"lengths_file is {path!r} with {server_args.nnodes} nodes; allowed is 1")
    texts = [_read(rank_path(path, rank)) for rank in range(server_args.dp_size)]
    setattr(server_args, ATTRIBUTE, tuple(texts))


def known_lengths(
    server_args: ServerArgs, config: TokenFlowConfig, dp_rank: int | None
) -> LengthPredictor:
    """The configured predictor, with what was learned before by this data-parallel replica."""
    texts = getattr(server_args, ATTRIBUTE, ())
    rank = dp_rank or 0
    known = read_lengths(texts[rank]) if rank < len(texts) and texts[rank] else None
    caution = config.length_caution
    if server_args.disaggregation_mode == "decode":
        caution = max(caution, DECODE_CAUTION)
    return make_predictor(config.lengths, caution, known)


def open_lengths_file(
    path: str, ranks: Ranks, lengths: LengthPredictor, now: float
) -> LengthsFile | None:
    """Where this rank keeps what it learns; None: it does not, or another one does for it.

    Args:
        path: As configured; empty: what is learned is not kept.
        ranks: SGLang's, of this process.
        lengths: What learns.
        now: Seconds on the clock that `LengthsFile.save` is told.
    """
    if not path or place_in_group(ranks) or not isinstance(lengths, LearnedLengths):
        return None
    return LengthsFile(rank_path(path, ranks.dp_rank), lengths, now)


def _read(path: Path) -> str:
    name = f"lengths_file {str(path)!r}"
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
    except UnicodeDecodeError:
        raise ConfigError(f"{name} is no file of learned lengths: it is not text") from None
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror}") from None
    if not os.access(path.absolute().parent, os.W_OK):
        raise ConfigError(f"{name} cannot be written: its folder is read-only")
    try:
        if text:
            read_lengths(text)
    except LengthsDocumentError as error:
        raise ConfigError(f"{name} is no file of learned lengths: {error}") from None
    return text


class LengthsFile:
    """Keeps what is learned of answers' lengths in a file.

    Args:
        path: Of the file.
        lengths: What learns.
        now: Seconds on the clock that `save` is told.
        interval: Seconds from one writing to the next, at least.
    """

    def __init__(
        self, path: Path, lengths: LearnedLengths, now: float, interval: float = INTERVAL
    ) -> None:
        self._path = path.resolve()  # a link stays one
        self._lengths = lengths
        self._interval = interval
        self._due = now + interval
        self._answers = lengths.answers
        self._writing: threading.Thread | None = None
        self._failed = False

    def save(self, now: float) -> None:
        """Write if it is time, and answers have ended since."""
        if now < self._due or self._lengths.answers == self._answers:
            return
        if self._writing is not None and self._writing.is_alive():
            return
        self._due, self._answers = now + self._interval, self._lengths.answers
        # A copy: the scheduler goes on learning meanwhile.
        writing = threading.Thread(
            target=self._write,
            args=(self._lengths.evidence(),),
            name="tokenflow-lengths",
            daemon=True,
        )
        try:
            writing.start()
        except RuntimeError as error:  # no more threads
            self._fail(str(error))
            return
        self._writing = writing

    def close(self) -> None:
        """Wait for what is being written, and write what has ended since."""
        if self._writing is not None:
            self._writing.join()
        if self._lengths.answers != self._answers:
            self._answers = self._lengths.answers
            self._write(self._lengths.evidence())

    def _write(self, evidence: Evidence) -> None:
        scratch = self._path.with_name(f"{self._path.name}.{os.getpid()}.new")
        try:
            with scratch.open("w", encoding="utf-8") as file:
                file.write(lengths_document(evidence))
                file.flush()
                os.fsync(file.fileno())
            scratch.replace(self._path)
        except OSError as error:
            with contextlib.suppress(OSError):
                scratch.unlink(missing_ok=True)
            self._fail(str(error.strerror))
            return
        if self._failed:
            logger.warning("tokenflow: lengths_file %r is written again", str(self._path))
        self._failed = False

    def _fail(self, why: str) -> None:
        """What is learned is still to be written."""
        self._answers = -1
        if not self._failed:
            logger.error(
                "tokenflow: lengths_file %r cannot be written: %s; it is tried again every %g s, "
                "and until it is written, further failures are not logged",
                str(self._path),
                why,
                self._interval,
            )
        self._failed = True
