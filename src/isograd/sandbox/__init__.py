"""Sandboxes: where the runner runs. One file a backend; the pool leases their lanes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isograd._lazy import lazily

if TYPE_CHECKING:
    from isograd.sandbox.base import Sandbox
    from isograd.sandbox.bubblewrap import BubblewrapSandbox
    from isograd.sandbox.ceiling import CEILING
    from isograd.sandbox.docker import DockerSandbox
    from isograd.sandbox.fake import FakeSandbox
    from isograd.sandbox.pool import Pool
    from isograd.sandbox.subprocess import SubprocessSandbox

__all__ = [
    "CEILING",
    "BubblewrapSandbox",
    "DockerSandbox",
    "FakeSandbox",
    "Pool",
    "Sandbox",
    "SubprocessSandbox",
]

__getattr__ = lazily(
    __name__,
    {
        "isograd.sandbox.base": "Sandbox",
        "isograd.sandbox.ceiling": "CEILING",
        "isograd.sandbox.bubblewrap": "BubblewrapSandbox",
        "isograd.sandbox.docker": "DockerSandbox",
        "isograd.sandbox.fake": "FakeSandbox",
        "isograd.sandbox.pool": "Pool",
        "isograd.sandbox.subprocess": "SubprocessSandbox",
    },
)
