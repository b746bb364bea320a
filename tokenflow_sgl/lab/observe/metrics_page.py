"""Reads a server's metrics page, once."""

from __future__ import annotations

import http.client
import math
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tokenflow_sgl.errors import FailedError, shown

PREFIX = "tokenflow:"
TIMEOUT_SECONDS = 10.0
MAX_BYTES = 32 * 1024 * 1024
"""Longest answer that is read."""
MAX_PAGE_BYTES = 4 * 1024 * 1024
MAX_PAGE_LINES = 50_000
"""Longest metrics page that is read."""
_PIECE = 64 * 1024


class ScrapeError(FailedError):
    """The page cannot be read; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Scrape:
    """The samples of one page, those of `tokenflow:*` without their prefix.

    Series of several schedulers on one page (data-parallel ranks) count together, except in
    `least`, `most` and `mean`.
    """

    samples: Mapping[str, tuple[Sample, ...]]

    def has(self, name: str) -> bool:
        """Whether there is a series of that name."""
        return name in self.samples

    def total(self, name: str, **labels: str) -> float:
        """Sum of the series with these labels that are known, not NaN; NaN without any."""
        known = self._known(name, labels)
        return math.fsum(known) if known else math.nan

    def least(self, name: str, **labels: str) -> float:
        """Smallest of the known series with these labels, for what does not add up; else NaN."""
        return min(self._known(name, labels), default=math.nan)

    def most(self, name: str, **labels: str) -> float:
        """Largest of the known series with these labels, for what does not add up; else NaN."""
        return max(self._known(name, labels), default=math.nan)

    def mean(self, name: str, **labels: str) -> float:
        """Mean of the known series with these labels: what one scheduler has; NaN without any."""
        known = self._known(name, labels)
        return math.fsum(known) / len(known) if known else math.nan

    def by(self, name: str, label: str) -> dict[str, float]:
        """Sums of a metric by the value of a label."""
        sums: dict[str, float] = {}
        for sample in self.samples.get(name, ()):
            key = sample.labels.get(label, "")
            sums[key] = sums.get(key, 0.0) + sample.value
        return sums

    def quantile(self, name: str, share: float, **labels: str) -> float:
        """Quantile of a histogram's observations, linear inside a bucket as PromQL's is.

        NaN without observations; the last finite bound where it lies beyond.
        """
        buckets: dict[float, float] = {}
        for sample in self._of(f"{name}_bucket", labels):
            bound = float(sample.labels["le"])
            buckets[bound] = buckets.get(bound, 0.0) + sample.value
        if not buckets or not (wanted := share * max(buckets.values())):
            return math.nan
        low, below = 0.0, 0.0
        for bound, upto in sorted(buckets.items()):
            if upto >= wanted:
                if math.isinf(bound):
                    return low
                return low + (bound - low) * (wanted - below) / (upto - below)
            low, below = bound, upto
        return low

    def since(self, before: Scrape) -> Scrape:
        """What counters and histograms gained since another scrape of the same server.

        A series that went down began anew, when the server started again.
        """
        old = {
            _key(sample): sample.value for samples in before.samples.values() for sample in samples
        }
        gained = {}
        for name, samples in self.samples.items():
            gained[name] = tuple(
                sample._replace(value=_gain(sample, old.get(_key(sample), 0.0)))
                for sample in samples
            )
        return Scrape(gained)

    def _known(self, name: str, labels: Mapping[str, str]) -> list[float]:
        values = (sample.value for sample in self._of(name, labels))
        return [value for value in values if not math.isnan(value)]

    def _of(self, name: str, labels: Mapping[str, str]) -> list[Sample]:
        return [
            sample
            for sample in self.samples.get(name, ())
            if all(sample.labels.get(key) == value for key, value in labels.items())
        ]


def _key(sample: Sample) -> tuple[str, tuple[tuple[str, str], ...]]:
    return sample.name, tuple(sorted(sample.labels.items()))


def _gain(sample: Sample, old: float) -> float:
    return sample.value - old if sample.value >= old else sample.value


def scrape(url: str) -> Scrape:
    """The metrics of the server at a base URL.

    Raises:
        ScrapeError: No server answers there, or it has no metrics page.
    """
    page = url.rstrip("/") + "/metrics"
    text = fetch(page, missing="start the server with --enable-metrics", most=MAX_PAGE_BYTES)
    if text.count(b"\n") > MAX_PAGE_LINES:
        raise ScrapeError(f"{page} has over {MAX_PAGE_LINES:,} lines; is that the right server?")
    try:
        return parse(text.decode())
    except ValueError as error:
        raise ScrapeError(f"{page} is no metrics page ({shown(str(error))})") from None


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False


def scheduler_page(url: str) -> Scrape:
    """The metrics of a server that runs our scheduler.

    Raises:
        ScrapeError: As `scrape`, or it has no metrics of the scheduler.
    """
    seen = scrape(url)
    if not seen.has("mode"):
        raise ScrapeError(
            f"{url} has no tokenflow:* metrics. Next: start it with --scheduler tokenflow "
            "--enable-metrics"
        )
    return seen


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: a login page is no answer, and another host must not get the token."""

    def redirect_request(self, *_: Any) -> None:
        """Follow no redirection: it stays an error."""


def fetch(page: str, *, missing: str, most: int = MAX_BYTES, **request: Any) -> bytes:
    """What is at a URL; `request` goes to `urllib.request.Request`.

    missing: What to do where there is no such page.
    most: Bytes that an answer may have.

    Raises:
        ScrapeError: No server answers there, or not with HTTP 200; a redirect is not followed.
    """
    if not _is_address(page):
        raise ScrapeError(f"{page!r} is no URL of a server; one looks like http://127.0.0.1:30000")
    # No proxy of the environment may be used, least of all for loopback.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)
    try:
        with opener.open(
            urllib.request.Request(page, **request), timeout=TIMEOUT_SECONDS
        ) as response:
            text = _read(response, most)
    except urllib.error.HTTPError as error:
        step = f"; {missing}" if error.code == 404 else ""
        if 300 <= error.code < 400:
            to = str(error.headers.get("location"))
            step = f" and leads to {to[:200]!r}. Next: give the address behind that redirect"
        raise ScrapeError(f"{page} answers with HTTP {error.code}{step}") from None
    except (OSError, ValueError) as error:
        cause = getattr(error, "reason", error)
        reason = getattr(cause, "strerror", None) or cause  # without its number
        raise ScrapeError(
            f"no server answers at {page} ({reason}). Next: see whether it is up"
        ) from None
    except http.client.HTTPException as error:
        raise ScrapeError(
            f"what answers at {page} is no HTTP, or broke off ({repr(error)[:80]}). Next: see "
            "whether that is the right port"
        ) from None
    if len(text) > most:
        raise ScrapeError(f"{page} is longer than {most} bytes; is that the right server?")
    return text


def _read(response: http.client.HTTPResponse, most: int) -> bytes:
    """The body, and up to one piece more than is allowed.

    A server that sends a byte now and then would hold an ordinary read for ever.

    Raises:
        TimeoutError: The body has no end in time.
    """
    end = time.monotonic() + TIMEOUT_SECONDS
    text = bytearray()
    while len(text) <= most and (piece := response.read1(_PIECE)):
        text += piece
        if time.monotonic() > end:
            raise TimeoutError(f"its answer has no end within {TIMEOUT_SECONDS:g} s")
    return bytes(text)


def parse(text: str) -> Scrape:
    """The samples of a page in Prometheus' text format; ValueError for another one."""
    samples: dict[str, list[Sample]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples.setdefault(sample.name.removeprefix(PREFIX), []).append(sample)
    return Scrape({name: tuple(each) for name, each in samples.items()})
