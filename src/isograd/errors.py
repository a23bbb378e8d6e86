"""The exceptions of isograd.

::

    IsogradError
    ├── InputError           a file or an argument of the user's is wrong       exit status 2
    ├── OptInRequired        running code on this host was not allowed          exit status 2
    └── SandboxError         our side failed; never a score                     exit status 3
        ├── SandboxUnavailable   no daemon, permission, image: says what to type
        └── SandboxCrashed       a lane died and the candidate is not to blame

What a candidate does is never an exception: it is an ``Envelope``.
"""

from __future__ import annotations


class IsogradError(Exception):
    """The root of isograd's exceptions. ``exit_status`` is what the command exits with."""

    exit_status = 3


class InputError(IsogradError):
    """A file or an argument is wrong; the message names file, line, field and rule."""

    exit_status = 2


class OptInRequired(IsogradError):
    """Model-written code would run on this host, and nobody has allowed it."""

    exit_status = 2


class SandboxError(IsogradError):
    """Our side failed. Never a verdict on a candidate."""


class SandboxUnavailable(SandboxError):
    """The sandbox cannot be had; the message says what to type next."""


class SandboxCrashed(SandboxError):
    """A lane died and what it was running is not to blame, or cannot be shown to be."""
