"""JSON that does not keep to lines is read object by object, and what is wrong is said."""

from __future__ import annotations

import gzip
import json

import pytest

from tokenflow_sgl.lab.traces import TraceError
from tokenflow_sgl.lab.traces.loaders import documents
from tokenflow_sgl.lab.traces.loaders.documents import Documents

ROWS = [{"a": index, "text": 'ü "]}{[,\\' * index} for index in range(40)]


def read(path, limit: int = 1 << 20) -> list[dict]:
    return list(Documents(path, limit=limit, kind="otel").rows())


@pytest.fixture(params=[7, 64, 1 << 20])
def chunk(request, monkeypatch) -> None:
    """How much is read at once, from less than an object to all of the file."""
    monkeypatch.setattr(documents, "_CHUNK", request.param)


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize(
    "text",
    [
        json.dumps(ROWS),
        json.dumps(ROWS, indent=2, ensure_ascii=False) + "\n",
        "\ufeff" + "\r\n".join(map(json.dumps, ROWS)),
        "".join(json.dumps(row, indent=1) for row in ROWS),
    ],
    ids=("list", "pretty", "lines", "concatenated"),
)
def test_every_shape_gives_the_objects(write, text) -> None:
    assert read(write(text, "a.json")) == ROWS
    assert read(write(gzip.compress(text.encode()), "a.json.gz")) == ROWS


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", ": is empty"),
        ("\x00\x01", "object 1: is not JSON: Expecting value at its character 1"),
        (b"\xff\xfe{}", ": has bytes that are not UTF-8 text"),
        (b'{"a": 1} \xff', "a.json: has bytes that are not UTF-8 text"),
        ("[1]", "object 1: is no JSON object; allowed are objects alone"),
        ('[{"a": 1}', "object 1: is the last one of a list that does not end: the file may be cut"),
        ('[{"a": 1} {"a": 2}]', "object 1: is followed by neither a comma nor the end of the list"),
        ('[{"a": 1}, {"a": ]', "object 2: is not JSON: Expecting value at its character 7"),
        ('[{"a": 1},]', "object 2: is not JSON: Expecting value at its character 1"),
        ('[{"a": 1}] {"a": 2}', "object 1: has more behind the end of its list"),
        ('{"a": "open', "object 1: is not JSON: Unterminated string"),
        ('{"a": 1} {"a": NaN}', "object 2: is not JSON that can be used: NaN is no number"),
        ('{"a": ' + "9" * 5000 + "}", "is not JSON that can be used"),
        ('{"a": ' + "[" * 100_000, "is not JSON that can be used"),
    ],
)
def test_what_is_wrong_is_said(write, text, problem) -> None:
    path = write(text, "a.json")
    with pytest.raises(TraceError) as caught:
        read(path)
    assert problem in str(caught.value)
    assert str(caught.value).startswith(str(path))


def test_an_object_without_end_is_not_read_beyond_the_limit(write, monkeypatch) -> None:
    monkeypatch.setattr(documents, "_CHUNK", 64)
    path = write('{"a": "' + "x" * 100_000, "a.json")
    told: list[int] = []
    records = Documents(path, lambda done, _: told.append(done), 4096, kind="otel")
    with pytest.raises(TraceError, match="object 1: is longer than 4096 characters, the most"):
        list(records.rows())
    assert told[-1] < 3 * 4096


def test_bytes_without_end_are_not_read(endless) -> None:
    with pytest.raises(TraceError, match="object 1: is not JSON: Invalid control character"):
        read(endless('{"a": "', "a.json"))


def test_an_empty_list_has_no_objects(write) -> None:
    assert read(write(" [ ] ", "a.json")) == []


def test_what_was_read_is_told(write) -> None:
    told: list[tuple[int, int]] = []
    path = write(json.dumps(ROWS), "a.json")
    list(Documents(path, lambda done, size: told.append((done, size)), kind="otel").rows())
    assert told == [(path.stat().st_size,) * 2]
