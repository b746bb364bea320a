"""Learned lengths as a JSON document, in which they survive a restart of the server.

Kinds are named by their traits and lengths by tokens, not by rows and cells, so that a document
means the same to a version that arranges them otherwise. Only what counts is written: most cells of
most kinds are empty.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from typing import Any

import numpy as np

from tokenflow_sgl.contract import FloatArray
from tokenflow_sgl.contract.lengths import GRID, LONGEST, cell_of
from tokenflow_sgl.errors import shown
from tokenflow_sgl.policy.learned_lengths import BUCKETS, KINDS, Evidence, Kind

FORMAT, VERSION = "tokenflow-lengths", 1
LEAST = 1e-4
"""Answers below which a cell counts as empty: of one that ended 3,400 answers ago less is left."""
MOST = 1e6
"""Answers above which a count is none: older ones count less, so all together are a few hundred."""


class LengthsDocumentError(ValueError):
    """A document is not one of learned lengths; the message says what is wrong."""


def lengths_document(evidence: Evidence) -> str:
    """The document of what was learned, one line per kind."""
    limit = None if math.isnan(evidence.log_limit) else math.exp(evidence.log_limit)
    head = json.dumps({"format": FORMAT, "version": VERSION, "limit": limit})
    lines = [f'"all": {json.dumps(_counts(evidence, 0))}']
    kinds = [
        json.dumps(_traits(kind) | _counts(evidence, row))
        for row, kind in enumerate(evidence.kinds, start=1)
    ]
    lines.append('"kinds": [' + ",\n".join(kinds) + "]")
    return head[:-1] + ",\n" + ",\n".join(lines) + "}\n"


def read_lengths(text: str) -> Evidence:
    """Read what a file of lengths says.

    Raises:
        LengthsDocumentError: It is none.
    """
    try:
        found = json.loads(text)
    except ValueError as error:
        raise LengthsDocumentError(f"it is not JSON: {error}") from None
    except RecursionError:
        raise LengthsDocumentError("it is nested too deeply to be read") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise LengthsDocumentError(f"its format is not {FORMAT!r}")
    if found.get("version") != VERSION:
        raise LengthsDocumentError(
            f"version is {shown(found.get('version'))}; allowed is {VERSION}"
        )
    limit = found.get("limit")
    if limit is not None and not _number(limit, 1.0, math.inf):
        raise LengthsDocumentError(f"limit is {shown(limit)}; allowed is null or tokens, 1 or more")
    rows = found.get("kinds")
    if not isinstance(rows, list) or len(rows) > KINDS:
        raise LengthsDocumentError(f"kinds is no list of at most {KINDS}")
    kinds = tuple(_kind(row) for row in rows)
    if len(set(kinds)) < len(kinds):
        raise LengthsDocumentError("kinds has one of them twice")
    places = [("all", found.get("all"))]
    places += [(f"kinds[{number}]", row) for number, row in enumerate(rows)]
    ended, cut = (
        np.stack([_row(where, row, name) for where, row in places]) for name in ("ended", "cut_off")
    )
    return Evidence(math.nan if limit is None else math.log(limit), kinds, ended, cut)


def _traits(kind: Kind) -> dict[str, Any]:
    thinking, qos_class, bucket = kind
    bound = BUCKETS[bucket] if bucket < len(BUCKETS) else None
    return {"thinking": thinking, "qos_class": qos_class, "prompt_up_to": bound}


def _kind(row: Any) -> Kind:
    if not isinstance(row, dict):
        raise LengthsDocumentError(f"kinds has {row!r}; allowed is an object")
    thinking, qos_class, bound = (
        row.get(name) for name in ("thinking", "qos_class", "prompt_up_to")
    )
    if not isinstance(thinking, bool):
        raise LengthsDocumentError(f"thinking is {shown(thinking)}; allowed is true or false")
    if not isinstance(qos_class, str):
        raise LengthsDocumentError(f"qos_class is {shown(qos_class)}; allowed is a name")
    if bound is not None and (isinstance(bound, bool) or bound not in BUCKETS):
        known = ", ".join(map(str, BUCKETS))
        raise LengthsDocumentError(f"prompt_up_to is {shown(bound)}; allowed is {known} or null")
    return thinking, qos_class, len(BUCKETS) if bound is None else bisect_left(BUCKETS, bound)


def _counts(evidence: Evidence, row: int) -> dict[str, list[tuple[int, float]]]:
    """Length and number of answers, where there are any."""
    found = {}
    for name, counts in (("ended", evidence.ended[row]), ("cut_off", evidence.cut[row])):
        cells = np.nonzero(counts >= LEAST)[0]
        answers = np.round(counts[cells], 6).tolist()
        found[name] = list(zip(GRID[cells].tolist(), answers, strict=True))
    return found


def _row(where: str, row: Any, name: str) -> FloatArray:
    pairs = row.get(name) if isinstance(row, dict) else None
    if not isinstance(pairs, list):
        raise LengthsDocumentError(f"{where} has no list {name}")
    counts = np.zeros(len(GRID))
    for pair in pairs:
        good = isinstance(pair, list) and len(pair) == 2
        if not good or not _number(pair[0], 0, LONGEST) or not _number(pair[1], 0, MOST):
            raise LengthsDocumentError(
                f"{name} of {where} has {shown(pair)}; allowed is [tokens, answers], 0 to "
                f"{LONGEST} and 0 to {MOST:g}"
            )
        counts[cell_of(np.array([pair[0]]))[0]] += pair[1]
    return counts


def _number(value: Any, low: float, high: float) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return low <= value <= high and value < math.inf
