"""What goes wrong on an emulated link: which calls fail, and which pages are not what they were."""

import logging
import zlib

from tokenflow_sgl_emulator.storage.link_settings import LinkSettings
from tokenflow_sgl_emulator.storage.page_store import PageStore, checksum

logger = logging.getLogger(__name__)


class LinkFaults:
    """The faults of one rank's link.

    A page is faulty or not by the seed, the rank and its key, so in every run the same ones are.

    Args:
        rank: Of this server process, in words.
    """

    def __init__(self, rank: str) -> None:
        self._rank = rank
        self._settings: LinkSettings | None = None
        self._since = 0.0
        self._pages = 0

    def under(self, settings: LinkSettings, now: float) -> None:
        """These settings hold from `now` (emulated seconds) on, if they did not before."""
        if settings != self._settings:
            self._settings, self._since, self._pages = settings, now, 0

    def let_through(self, pages: int, now: float) -> int:
        """How many of so many pages still get over the link; they are counted as moved."""
        s = self._held
        if self.dead(now):
            return 0
        if s.dead_after_pages is not None:
            pages = min(pages, s.dead_after_pages - self._pages)
        self._pages += pages
        return pages

    def dead(self, now: float) -> bool:
        """Whether no page gets over the link any more."""
        s = self._held
        late = s.dead_after_s is not None and now - self._since >= s.dead_after_s
        return late or (s.dead_after_pages is not None and self._pages >= s.dead_after_pages)

    def raise_if_due(self, what: str, keys: list[str]) -> None:
        """Fail a call as a client library may.

        Raises:
            ConnectionError: This call is one of the raising ones.
        """
        if keys and self._hit("raising", keys[0], self._held.raising):
            raise ConnectionError(f"emulated failure: {what} of {len(keys)} pages")

    def read(self, store: PageStore, keys: list[str]) -> list[bytes | None]:
        """Pages as they come over the link; None: it does not, or it is seen to be wrong."""
        # The one before the first is the last: in every call that has two, a shifted one is wrong.
        return [self._page(store, key, keys[number - 1]) for number, key in enumerate(keys)]

    def _page(self, store: PageStore, key: str, before: str) -> bytes | None:
        s = self._held
        if self._hit("missing", key, s.missing):
            return None
        found = store.get(before if self._hit("shifted", key, s.shifted) else key)
        if found is None:
            return None
        page, kept = found
        if self._hit("corrupt", key, s.corrupt):
            middle = len(page) // 2
            page = page[:middle] + bytes([page[middle] ^ 0xFF]) + page[middle + 1 :]
        if s.checksum and checksum(key, page) != kept:
            logger.warning("Page %s is not what was stored; it counts as missing.", key)
            return None
        return page

    @property
    def _held(self) -> LinkSettings:
        assert self._settings is not None, "under() comes first"
        return self._settings

    def _hit(self, kind: str, key: str, share: float) -> bool:
        text = f"{self._held.seed} {kind} {self._rank} {key}"
        return zlib.crc32(text.encode()) < share * 2**32
