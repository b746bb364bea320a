"""Reads the log of decisions and tells what happened to a stream, and why."""

from __future__ import annotations

import glob
import heapq
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

from tokenflow_sgl.errors import InputError

CAUSES = {
    "newcomer": "to free memory for a stream without a first token",
    "exchange": "to free memory for a paused stream that is closer to a stall",
    "memory": "because the next decode steps would not have fitted",
    "park": "because it was far ahead of its reader, and the others decode faster without it",
    "rest": "because its reader had looked away",
    "policy": "for a reason of the policy's own",
}
_NAME = re.compile(r"((?:\.(?:dp|pp)\d+)*)(?:\.(\d+))?")
"""What follows the log's name: the rank (`engine.ranks.rank_path`) and the number of a rotation."""
SHORTEST_NAME = 8
"""Characters that are kept of a request id at least."""


class LogError(InputError):
    """The file is not a log of decisions; the message names the file and the line."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a stream.

    Attributes:
        time: Unix seconds.
        rid: The stream's request id.
        what: "admitted", "scheduled" (to start or resume), "loading", "paused" or "restored".
        why: In words.
        line: The whole line of the log.
    """

    time: float
    rid: str
    what: str
    why: str
    line: dict[str, Any]


def read_log(path: Path) -> Iterator[dict[str, Any]]:
    """Lines of a log, of its rotated files, and of the logs of other ranks beside it, by time.

    Each has under "rank" which rank's it is: "" for the first one's, or like ".dp1".

    Raises:
        LogError: A file cannot be read, or one of its lines does not belong to a log of decisions.
            A last line that is cut off, because the server is writing it, is left out.
    """
    logs = [_read_files(rank, files) for rank, files in _files(path).items()]
    return heapq.merge(*logs, key=lambda line: float(line["time"]))


def read_tail(path: Path, most_bytes: int) -> list[dict[str, Any]]:
    """The newest lines of a log and of the logs of other ranks beside it, by time.

    Args:
        path: The first rank's log.
        most_bytes: Read of each rank's present file, and of the one before if that is shorter.

    Raises:
        LogError: As `read_log`.
    """
    lines: list[dict[str, Any]] = []
    for rank, files in _files(path).items():
        left = most_bytes
        for each in reversed(files[-2:]):
            text = _tail(each, left)
            found = _lines(each, text.decode(errors="replace").splitlines(keepends=True))
            lines.extend({**line, "rank": rank} for line in found)
            left -= len(text)
    return sorted(lines, key=lambda line: float(line["time"]))


def _tail(path: Path, most_bytes: int) -> bytes:
    """The last whole lines of a file."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            begin = max(size - max(most_bytes, 0), 0)
            file.seek(begin)
            text = file.read(size - begin)
    except OSError as error:
        raise LogError(f"{path} cannot be read: {error.strerror}") from None
    return text.partition(b"\n")[2] if begin else text


def _files(path: Path) -> dict[str, list[Path]]:
    """The files of each rank's log, oldest first."""
    numbered: dict[str, list[tuple[int, Path]]] = {}
    for each in path.parent.glob(f"{glob.escape(path.name)}*"):
        if found := _NAME.fullmatch(each.name.removeprefix(path.name)):
            rank, number = found.groups()
            numbered.setdefault(rank, []).append((int(number or 0), each))
    if not numbered:
        return {"": [path]}  # which says why it cannot be read
    return {
        rank: [each for _, each in sorted(files, reverse=True)]
        for rank, files in sorted(numbered.items())
    }


def _read_files(rank: str, files: Iterable[Path]) -> Iterator[dict[str, Any]]:
    for each in files:
        try:
            with each.open(encoding="utf-8") as file:
                for line in _lines(each, file):
                    yield {**line, "rank": rank}
        except OSError as error:
            raise LogError(f"{each} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise LogError(f"{each} is not text, so it is not a log of decisions") from None


def _lines(path: Path, file: Iterable[str]) -> Iterator[dict[str, Any]]:
    for number, text in enumerate(file, 1):
        if not text.endswith("\n"):
            return
        try:
            line = json.loads(text)
            float(line["time"]), *_parts(line)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            raise LogError(f"{path}, line {number} is not one of a log of decisions") from None
        yield line


def _parts(line: dict[str, Any]) -> tuple[Any, ...]:
    """What a line must have: it is of a restoration, or of a pass."""
    if "restored" in line:
        return line["restored"]["rid"], line["restored"]["way"]
    return line["preempt"], line["candidates"]


def identifiers(lines: Iterable[dict[str, Any]]) -> set[str]:
    """All request ids that a log mentions, also of streams without an event."""
    passes = []
    restored = set()
    for line in lines:
        if "restored" in line:
            restored.add(line["restored"]["rid"])
        else:
            passes.append(line)
    return restored | {
        rid
        for line in passes
        for rid in (
            *(each["rid"] for each in (*line["preempt"], *line["candidates"])),
            *line["admit"],
            *line["load"],
            *line["take_up"],
        )
    }


def short_names(rids: Iterable[str]) -> dict[str, str]:
    """A short name for each identifier: its shortest beginning that no other identifier has.

    An identifier that is itself the beginning of another stays whole: `named` finds it, because an
    exact match goes first.
    """
    ordered = sorted(set(rids))
    needed = dict.fromkeys(ordered, SHORTEST_NAME)
    for one, other in pairwise(ordered):  # the longest common beginning is that of a neighbour
        same = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
        shared = len(list(same)) + 1
        for each in (one, other):
            needed[each] = max(needed[each], shared)
    return {rid: rid[:length] for rid, length in needed.items()}


def named(asked: str, rids: Iterable[str]) -> list[str]:
    """The identifiers that `asked` may mean: itself, or all that begin with it, in order."""
    known = set(rids)
    return [asked] if asked in known else sorted(rid for rid in known if rid.startswith(asked))


def events(
    lines: Iterable[dict[str, Any]], names: Mapping[str, str] | None = None
) -> Iterator[Event]:
    """What happened to which stream; a stream that stays scheduled has one event for that.

    Args:
        lines: Lines of a log, in its order; ranks may have turns.
        names: Names for other streams in `Event.why`, by request id; the ids themselves if None.
    """

    def name(rid: str) -> str:
        return rid if names is None else names[rid]

    by_rank: dict[str, set[str]] = {}
    for line in lines:
        moment, rank = line["time"], line.get("rank", "")
        offered = by_rank.get(rank, set())
        if "restored" in line:
            told = line["restored"]
            yield Event(moment, told["rid"], "restored", _restored(told), line)
            continue
        for rid in line["admit"]:
            yield Event(moment, rid, "admitted", "its reader can be served", line)
        for each in line["preempt"]:
            cause = CAUSES.get(each["cause"], each["cause"])
            because = _because(line, each["rid"], cause, name)
            yield Event(moment, each["rid"], "paused", because, line)
        for rid in line["load"]:
            if rid not in offered:
                yield Event(moment, rid, "loading", "its KV is loaded beside the steps", line)
        for rid in line["take_up"]:
            if rid not in offered:
                yield Event(moment, rid, "scheduled", _state(line, rid), line)
        by_rank[rank] = {*line["take_up"], *line["load"]}


def _restored(told: dict[str, Any]) -> str:
    """How a stored prefix came back, and what the other ways would have taken."""
    computed, fetched, seconds = told["computed"], told["fetched"], told["seconds"]
    if "layers" in told:
        below, layers = told["layers"]
        story = f"{below} of {layers} layers of its stored prefix of {computed + fetched:,} tokens"
        story += " were computed while the others came from the storage"
        story += ", which failed then" if told["failed"] else ""
    elif not computed:
        story = f"all {fetched:,} tokens of its stored prefix were fetched"
    elif not fetched:
        because = "the storage failed" if told["failed"] else "that is soonest"
        story = f"all {computed:,} tokens of its stored prefix are computed, as {because}"
    else:
        story = f"{computed:,} tokens of its stored prefix were computed while {fetched:,} came"
        story += " from the storage, which failed then" if told["failed"] else " from the storage"
    if fetched and "took" in seconds:
        story += f", in {seconds['took']:.3f} s"
    ways = (("compute", "computing all takes"), ("fetch", "fetching all takes"))
    known = [f"{words} {seconds[way]:.3f} s" for way, words in ways if way in seconds]
    return story + "".join(f"; {each}" for each in known)


def _because(line: dict[str, Any], rid: str, cause: str, name: Callable[[str], str]) -> str:
    """The cause, with the figures of the stream and of those that run instead."""
    story = f"{cause}; {_state(line, rid)}"
    instead = [other for other in line["take_up"] if other != rid][:3]
    if instead:
        others = "; ".join(f"{name(other)}: {_state(line, other)}" for other in instead)
        story += f". Instead: {others}"
    return story


def _state(line: dict[str, Any], rid: str) -> str:
    for stream in line["candidates"]:
        if stream["rid"] == rid:
            slack = stream["slack"]
            if slack is None:
                return f"its reader looks away, {stream['generated']} tokens so far"
            if stream["generated"] == 0:
                return f"it has waited {abs(slack):.1f} s for its first token"
            tokens = f"{stream['generated']} of about {stream['expected']} tokens"
            if slack < 0.0:
                return f"its reader has stalled for {-slack:.1f} s, {tokens}"
            return f"its reader has {slack:.1f} s unread, {tokens}"
    return "not among the streams that were logged"
