"""Sandboxes: where the runner runs. One file a backend; the pool leases their lanes."""

from isograd.sandbox.base import CEILING, Sandbox
from isograd.sandbox.bubblewrap import BubblewrapSandbox
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
