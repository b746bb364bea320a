"""The emulated devices, and servers on them."""

from emulated.fixtures import *  # noqa: F403
