"""The pages behind an emulated link: really kept, in memory or in a folder, with checksums."""

import os
import threading
import uuid
import zlib
from pathlib import Path

_SUM_BYTES = 4


class PageStore:
    """Pages by key, byte for byte.

    Args:
        folder: Where they are kept, one file per page, so that they survive a restart; None: in
            memory.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._memory: dict[str, bytes] = {}
        self._lock = threading.Lock()
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def __contains__(self, key: str) -> bool:
        if self._folder is not None:
            return self._path(key).exists()
        with self._lock:
            return key in self._memory

    def put(self, key: str, page: bytes) -> None:
        """Keep a page, in place of one that has the same key; it appears complete or not at all."""
        stored = checksum(key, page) + page
        if self._folder is None:
            with self._lock:
                self._memory[key] = stored
            return
        scratch = self._folder / f".{uuid.uuid4().hex}"
        scratch.write_bytes(stored)
        os.replace(scratch, self._path(key))

    def get(self, key: str) -> tuple[bytes, bytes] | None:
        """A page and the checksum that it was kept with; None: it is not there."""
        if self._folder is None:
            with self._lock:
                stored = self._memory.get(key)
        else:
            try:
                stored = self._path(key).read_bytes()
            except FileNotFoundError:
                stored = None
        return None if stored is None else (stored[_SUM_BYTES:], stored[:_SUM_BYTES])

    def clear(self) -> None:
        """Forget all pages."""
        with self._lock:
            self._memory.clear()
        if self._folder is not None:
            for path in self._folder.iterdir():
                path.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        assert self._folder is not None
        return self._folder / key


def checksum(key: str, page: bytes) -> bytes:
    """Of a page and its key: another page's content in its place does not have it either."""
    return zlib.crc32(page, zlib.crc32(key.encode())).to_bytes(_SUM_BYTES, "little")
