import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenflow_sgl.lab.replay.http import EventLines, HttpError, HttpResponse

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def chunked(*parts, extension=b"", trailer=b""):
    body = b"".join(b"%X%b\r\n%b\r\n" % (len(part), extension, part) for part in parts if part)
    return CHUNKED + body + b"0\r\n" + trailer + b"\r\n"


def read(pieces):
    response, events = HttpResponse(), EventLines()
    found = []
    for piece in pieces:
        found += events.feed(response.feed(piece))
    return response, found


@st.composite
def cut_streams(draw):
    """Events, cut into chunks anywhere, and those into pieces of the connection anywhere."""
    events = draw(st.lists(st.binary(max_size=20).map(lambda data: data.hex().encode())))
    body = b"".join(b"data: " + event + b"\n\n" for event in events)
    cuts = sorted(draw(st.sets(st.integers(0, len(body)), max_size=6)))
    wire = chunked(*(body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)))
    cuts = sorted(draw(st.sets(st.integers(0, len(wire)), max_size=9)))
    return events, [wire[a:b] for a, b in zip([0, *cuts], [*cuts, len(wire)], strict=True)]


@given(cut_streams())
def test_events_do_not_depend_on_how_the_bytes_are_cut(stream):
    events, pieces = stream
    response, found = read(pieces)
    assert found == events
    assert response.complete
    assert (response.status, response.content_type) == (200, "text/event-stream")


def test_byte_by_byte_with_extensions_and_trailers():
    wire = chunked(b"data: 1\n", b"\ndata: 2\n\n", extension=b";a=b", trailer=b"X: y\r\n")
    response, found = read([wire[at : at + 1] for at in range(len(wire))])
    assert found == [b"1", b"2"]
    assert response.complete


def test_a_body_is_not_complete_before_its_last_line():
    wire = chunked(b"data: 1\n\n")
    assert not read([wire[:-1]])[0].complete


def test_a_body_of_stated_length():
    response = HttpResponse()
    assert response.feed(HEAD + b"Content-Length: 5\r\n\r\nabc") == b"abc"
    assert not response.complete
    assert response.feed(b"de, and more") == b"de"
    assert response.complete


def test_a_body_that_ends_with_the_connection():
    response = HttpResponse()
    assert response.feed(HEAD + b"\r\nabc") == b"abc"
    assert not response.complete
    response.end_of_connection()
    assert response.complete


def test_a_connection_that_ends_within_a_chunk_completes_nothing():
    response = HttpResponse()
    response.feed(CHUNKED + b"5\r\nab")
    response.end_of_connection()
    assert not response.complete


def test_lines_that_are_no_data_mean_nothing():
    assert EventLines().feed(b": ping\r\nevent: x\r\ndata: {}\r\n\r\ndata:1\ndata: half") == [
        b"{}",
        b"1",
    ]


@pytest.mark.parametrize(
    ("wire", "message"),
    [
        (b"SSH-2.0-x\r\n\r\n", "not an HTTP/1.1 response: 'SSH-2.0-x'"),
        (b"HTTP/1.1 abc\r\n\r\n", "not an HTTP/1.1 response"),
        (CHUNKED + b"xyz\r\n", "a chunk's length is b'xyz'"),
        (CHUNKED + b"-5\r\n", "a chunk's length is b'-5'"),
        (CHUNKED + b"1" * 70_000, "no end"),
        (HEAD + b"Content-Length: two\r\n\r\n", "Content-Length is 'two'"),
        (b"x" * 70_000, "head is longer"),
    ],
)
def test_broken_http_is_named(wire, message):
    with pytest.raises(HttpError, match=message):
        HttpResponse().feed(wire)
