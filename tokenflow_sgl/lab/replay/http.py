"""One HTTP/1.1 response, taken apart as its bytes come in: status, body, server-sent events.

No sockets and no clock: bytes go in, whole events come out, however the bytes were cut.
`stream_client` says why this client does not read its answers with aiohttp.
"""

from __future__ import annotations

_MAX_HEAD = 1 << 16
_MAX_LINE = 1 << 26


class HttpError(ValueError):
    """The bytes are not the HTTP that they should be; the message says what is wrong."""


class HttpResponse:
    """Head and body of one response.

    Attributes:
        status: Status code; 0 until the head is complete.
        content_type: Its `Content-Type`, lower case, without parameters.
        complete: The body has ended, as far as its framing tells.
    """

    __slots__ = ("_chunked", "_held", "_left", "_trailer", "complete", "content_type", "status")

    def __init__(self) -> None:
        self.status = 0
        self.content_type = ""
        self.complete = False
        self._held = b""
        self._chunked = False
        # Chunked: bytes of the current chunk still to come, its closing CRLF included.
        # Otherwise: bytes of the body still to come; -1 when it ends with the connection.
        self._left = 0
        self._trailer = False

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes of the connection; return those of the body among them.

        Raises:
            HttpError: This is no HTTP/1.x response, or its framing is broken.
        """
        if not self.status:
            head, found, rest = (self._held + data).partition(b"\r\n\r\n")
            if not found:
                if len(head) > _MAX_HEAD:
                    raise HttpError(f"the response's head is longer than {_MAX_HEAD} bytes")
                self._held = head
                return b""
            self._held = b""
            self._read_head(head)
            data = rest
        return self._unchunk(data) if self._chunked else self._plain(data)

    def end_of_connection(self) -> None:
        """The server has closed the connection, which ends a body without other framing."""
        if self.status and not self._chunked and self._left < 0:
            self.complete = True

    def _read_head(self, head: bytes) -> None:
        first, *lines = head.decode("latin-1").split("\r\n")
        parts = first.split(" ", 2)
        if len(parts) < 2 or not parts[0].startswith("HTTP/1.") or not parts[1].isdecimal():
            raise HttpError(f"not an HTTP/1.1 response: {first[:80]!r}")
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        self.content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        self._chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        if not self._chunked:
            length = headers.get("content-length", "-1")
            if not (length == "-1" or length.isdecimal()):
                raise HttpError(f"Content-Length is {length!r}")
            self._left = int(length)
            self.complete = self._left == 0
        self.status = int(parts[1])

    def _plain(self, data: bytes) -> bytes:
        if self._left < 0:
            return data
        body = data[: self._left]
        self._left -= len(body)
        self.complete = self._left == 0
        return body

    def _unchunk(self, data: bytes) -> bytes:
        data = self._held + data
        self._held = b""
        parts = []
        at, end = 0, len(data)
        while at < end and not self.complete:
            if self._left > 2:
                part = data[at : at + self._left - 2]
                parts.append(part)
                self._left -= len(part)
                at += len(part)
            elif self._left:
                step = min(self._left, end - at)
                self._left -= step
                at += step
            else:
                stop = data.find(b"\r\n", at)
                if stop < 0:
                    self._held = data[at:]
                    if len(self._held) > _MAX_HEAD:
                        raise HttpError("a chunk's length line has no end")
                    break
                self._length_line(data[at:stop])
                at = stop + 2
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _length_line(self, line: bytes) -> None:
        if self._trailer:  # header lines after the last chunk, up to an empty one
            self.complete = not line
            return
        try:
            size = int(line.partition(b";")[0], 16)
        except ValueError:
            size = -1
        if size < 0:
            raise HttpError(f"a chunk's length is {line[:40]!r}")
        if size:
            self._left = size + 2
        else:
            self._trailer = True


class EventLines:
    """Cuts a body of server-sent events into the data of its events.

    One `data:` line is one event, as all of these endpoints send it; other lines mean nothing here.
    """

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = b""

    def feed(self, body: bytes) -> list[bytes]:
        """Take the next bytes of the body; return the data of the lines that they completed.

        Raises:
            HttpError: A line does not end.
        """
        lines = (self._held + body).split(b"\n")
        self._held = lines.pop()
        if len(self._held) > _MAX_LINE:
            raise HttpError(f"a line of the stream is longer than {_MAX_LINE} bytes")
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]
