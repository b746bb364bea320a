"""A running server, seen from outside: what its metrics page says, and what that means."""

from tokenflow_sgl.observe.metrics_page import (
    Scrape,
    ScrapeError,
    fetch,
    parse,
    scheduler_page,
    scrape,
)

__all__ = ["Scrape", "ScrapeError", "fetch", "parse", "scheduler_page", "scrape"]
