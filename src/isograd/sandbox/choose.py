"""From a word on the command line to a sandbox."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from isograd.errors import InputError

if TYPE_CHECKING:
    from isograd.sandbox.base import Sandbox

BACKENDS = ("subprocess", "docker", "bubblewrap")


def sandbox_maker(
    spec: str,
    *,
    allow_code_exec: bool = False,
    image: str | None = None,
    runtime: str | None = None,
    packages: Sequence[str] = (),
    preload: Sequence[str] = (),
    spawn: str | None = None,
    recycle: int | None = None,
) -> Callable[[], Sandbox]:
    """What makes sandboxes of the kind that ``spec`` names.

    ``spec`` is a backend, or a backend with words behind a colon: ``fresh`` or ``zygote`` (how
    candidates are started) or, for docker, an OCI runtime: ``subprocess:fresh``,
    ``docker:runsc``, ``docker:runsc,fresh``. Raises InputError, OptInRequired.
    """
    backend, _, words = spec.partition(":")
    settings: dict[str, Any] = {
        "packages": tuple(packages),
        "preload": tuple(preload),
        "recycle": recycle,
    }
    if spawn is not None:
        settings["spawn"] = spawn
    for word in filter(None, words.split(",")):
        if word in ("fresh", "zygote"):
            settings["spawn"] = word
        elif backend == "docker":
            runtime = word
        else:
            raise InputError(f"--sandbox {spec}: {word!r} is not known: {backend}[:fresh]")
    if backend == "subprocess":
        from isograd.sandbox.subprocess import SubprocessSandbox, require_opt_in

        require_opt_in(allow_code_exec)
        return lambda: SubprocessSandbox(allow_code_exec=allow_code_exec, **settings)
    if backend == "docker":
        from isograd.sandbox.docker import DockerSandbox

        return lambda: DockerSandbox(image, runtime, **settings)
    if backend == "bubblewrap":
        from isograd.sandbox.bubblewrap import BubblewrapSandbox

        return lambda: BubblewrapSandbox(**settings)
    raise InputError(f"--sandbox {spec}: it is one of {', '.join(BACKENDS)}")
