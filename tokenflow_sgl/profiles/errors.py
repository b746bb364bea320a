"""What goes wrong with profiles, in sentences."""

from __future__ import annotations

from tokenflow_sgl.errors import InputError


class ProfileError(InputError):
    """A profile, a name or a measurement is not usable; the message says which and what is."""
