"""The live page of `tokenflow top --web`: servers watched, told in words and bars, served."""

from tokenflow_sgl.lab.observe.live.live_page import Watched, serve_page
from tokenflow_sgl.lab.observe.live.serving import is_loopback
from tokenflow_sgl.lab.observe.live.watched_server import WatchedServer

__all__ = ["Watched", "WatchedServer", "is_loopback", "serve_page"]
