"""A running server seen from outside: reads its metrics page and its log of decisions."""

from tokenflow_sgl.lab.observe.metrics_page import (
    Scrape,
    ScrapeError,
    fetch,
    parse,
    scheduler_page,
    scrape,
)

__all__ = ["Scrape", "ScrapeError", "fetch", "parse", "scheduler_page", "scrape"]
