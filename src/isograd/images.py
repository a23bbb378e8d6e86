"""The images that container lanes run in.

Two ways to the same thing, a root file system with Python and nothing of ours:

- ``build()`` starts from an official slim image of this host's minor version
  (``images/python/Dockerfile``). Only the base needs a registry.
- ``build(from_host=True)`` needs no registry at all: it copies the running interpreter, its
  standard library and the shared libraries that they name into a tar stream, each at the path
  it has on this host, and imports that. Both walls then have the very same Python.

Either way packages are those of this host, so that a candidate meets the same versions behind
every wall; what is not installed here is staged by pip, outside the build.

What is said about an image stands in its labels: ``isograd.image``, ``isograd.python`` (the full
version), ``isograd.packages`` (``name==version``, by space) and ``isograd.base``.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import os
import platform
import py_compile
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isograd.daemon import connect, unavailable
from isograd.errors import InputError, SandboxUnavailable

if TYPE_CHECKING:
    import docker

LABEL = "isograd.image"
REPOSITORY = "isograd/python"
FROM_HOST = "isograd image build --from-host"

Log = Callable[[str], None]


@dataclass(frozen=True)
class BuiltImage:
    """An image that the daemon has: the name to run it by, and the digest it has now."""

    tag: str
    id: str


def default_tag(python: str | None = None, with_: Sequence[str] = ()) -> str:
    """The name of the image for a minor version (this host's) and a set of packages."""
    words = [python or _minor(), *sorted({_canonical(_name(spec)) for spec in with_})]
    pins = sorted(spec for spec in with_ if _canonical(spec) != _canonical(_name(spec)))
    tag = re.sub(r"[^A-Za-z0-9_.-]+", "-", "-".join(words))
    if pins or len(tag) > 100:  # a version is part of what the image is; 128 characters at most
        digest = hashlib.sha256(" ".join(sorted(with_)).encode()).hexdigest()[:8]
        tag = f"{tag[:100]}-{digest}"
    return f"{REPOSITORY}:{tag}"


def present(tag: str, client: docker.DockerClient) -> BuiltImage | None:
    """The image of that name, if the daemon has it."""
    from docker.errors import DockerException, ImageNotFound

    try:
        return BuiltImage(tag, str(client.images.get(tag).id))
    except ImageNotFound:
        return None
    except (DockerException, OSError) as error:
        raise unavailable(error) from error


def build(
    *,
    from_host: bool = False,
    with_: Sequence[str] = (),
    tag: str | None = None,
    base: str | None = None,
    client: docker.DockerClient | None = None,
    log: Log = lambda _line: None,
) -> BuiltImage:
    """Make the image and name it. ``base`` replaces the official one, best with its digest.

    Raises ``InputError`` for a package that cannot be put in, and ``SandboxUnavailable`` if the
    daemon, the base or this interpreter cannot be had.
    """
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    if from_host and base:
        raise InputError("--from-host takes this host's Python: leave --base out")
    tag = tag or default_tag(with_=with_)
    client, ours = (client, False) if client is not None else (connect(600), True)
    try:
        before = present(tag, client)
        with _packages(with_, portable=not from_host, client=client, log=log) as packages:
            if from_host:
                _import_host(client, tag, packages, log)
            else:
                _build_from_base(client, tag, base, packages, log)
        image = present(tag, client)
        if image is None:
            raise SandboxUnavailable(f"the daemon did not keep {tag}: type `docker info`")
        if before and before.id != image.id:
            _drop_untagged(client, before.id)
        log(f"{image.tag} {image.id}")
        return image
    except (DockerException, RequestException) as error:
        raise unavailable(error) from error
    except OSError as error:
        raise SandboxUnavailable(
            f"the image cannot be assembled: {error}; if it is room that lacks, set TMPDIR"
        ) from error
    finally:
        if ours:
            client.close()


# -- the daemon ------------------------------------------------------------------------------


def _first_line(error: Exception) -> str:
    lines = str(getattr(error, "explanation", None) or error).strip().splitlines()
    return (lines or [type(error).__name__])[0][:300]


def _drop_untagged(client: docker.DockerClient, image_id: str) -> None:
    """Remove what this name stood for before, unless something else needs it."""
    from docker.errors import DockerException

    try:
        if not client.images.get(image_id).tags:
            client.images.remove(image_id)
    except DockerException:
        pass


def _same_architecture(client: docker.DockerClient) -> None:
    names = {"x86_64": "amd64", "aarch64": "arm64"}
    here = names.get(platform.machine(), platform.machine())
    there = str(client.version().get("Arch", here))
    if here != there:
        raise SandboxUnavailable(
            f"this host is {here} and the daemon {there}: type `isograd image build`, "
            "without --from-host and --with"
        )


# -- from an official base -------------------------------------------------------------------


def _build_from_base(
    client: docker.DockerClient, tag: str, base: str | None, packages: Packages, log: Log
) -> None:
    source = _dockerfiles()
    if base is None:
        base = f"python:{_minor()}-slim"
        digest = json.loads((source / "digests.json").read_text("utf-8")).get(_minor())
        base = f"{base}@{digest}" if digest else base
    pinned, version = _pull(client, base, log)
    with tempfile.TemporaryFile() as stream:
        with tarfile.open(fileobj=stream, mode="w") as tar:
            root = _RootFs(tar)
            for name in ("Dockerfile", "install.py"):
                root.text(f"/{name}", (source / name).read_text("utf-8"))
            root.directory("/site")
            for path, host in packages.files:
                root.place(f"/site/{path}", host, compiled=False)
        stream.seek(0)
        reply = client.api.build(
            fileobj=stream,
            custom_context=True,
            tag=tag,
            buildargs={"BASE": base, "PYTHON": _minor()},
            labels={
                "isograd.python": version,
                "isograd.packages": packages.label,
                "isograd.base": pinned,
            },
            network_mode="none",
            rm=True,
            forcerm=True,
            decode=True,
        )
        for line in reply:
            if "error" in line:
                raise SandboxUnavailable(
                    f"the image cannot be built on {base}: {str(line['error']).strip()}; "
                    f"type `{FROM_HOST}` to make it from this Python instead"
                )
            if text := str(line.get("stream", "")).strip():
                log(text)


def _pull(client: docker.DockerClient, base: str, log: Log) -> tuple[str, str]:
    """Have the base; say what exactly it is (its digest, else its id) and its Python version."""
    from docker.errors import DockerException, ImageNotFound

    try:
        try:
            image = client.images.get(base)
        except ImageNotFound:
            log(f"pulling {base}")
            image = client.images.pull(base)
    except (DockerException, OSError) as error:
        raise SandboxUnavailable(
            f"the base image {base} cannot be pulled ({_first_line(error)}); "
            f"type `{FROM_HOST}` to make the image from this Python instead"
        ) from error
    digests = image.attrs.get("RepoDigests") or []
    pinned = str(digests[0] if digests else image.id)
    log(f"base {base} is {pinned}")
    settings = dict(line.split("=", 1) for line in image.attrs["Config"].get("Env") or ())
    version = image.labels.get("isograd.python") or settings.get("PYTHON_VERSION") or _minor()
    return pinned, str(version)


def _dockerfiles() -> Path:
    here = Path(__file__).parent
    for folder in (here / "_images" / "python", here.parents[1] / "images" / "python"):
        if (folder / "Dockerfile").is_file():
            return folder
    raise SandboxUnavailable(f"no Dockerfile in this installation: type `{FROM_HOST}`")


# -- from this host --------------------------------------------------------------------------

PROBE = """
import json, mimetypes, sys, sysconfig, zoneinfo
print(json.dumps({
    "prefix": sys.prefix, "version": sys.version.split()[0],
    "stdlib": sorted({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"),
                      sysconfig.get_config_var("DESTSHARED")}),
    "site": sysconfig.get_path("purelib"),
    "data": [*zoneinfo.TZPATH, *mimetypes.knownfiles],
}))
"""

# Never asked for by a program, or nothing without what is outside the standard library.
LEFT_OUT = {
    *("site-packages", "dist-packages", "__pycache__"),
    *("idlelib", "turtledemo", "tests", "_bundled", "right", "posix"),
}
LEFT_OUT_PATTERN = re.compile(r"config-3|_test|_ctypes_test|_xxtestfuzz|xxlimited|lib\w+\.a$")

SYSTEM_FILES = (
    "/etc/ld.so.cache",  # where the loader finds what is not in its default folders
    "/etc/os-release",
    "/usr/lib/locale/C.utf8",
)
# Beside libc, and not for ldd to see: glibc opens the first two by name when a program first
# needs them, and the third is what every C++ wheel expects of a system.
BESIDE_LIBC = ("libgcc_s.so.1", "libnss_files.so.2", "libstdc++.so.6")

PASSWD = "root:x:0:0:root:/:/sbin/nologin\nnobody:x:65534:65534:nobody:/:/sbin/nologin\n"
GROUP = "root:x:0:\nnogroup:x:65534:\n"


def _import_host(client: docker.DockerClient, tag: str, packages: Packages, log: Log) -> None:
    if sys.platform != "linux":
        raise SandboxUnavailable("--from-host needs Linux: type `isograd image build` without it")
    if shutil.which("ldd") is None:
        raise SandboxUnavailable("--from-host needs `ldd`: install your system's libc tools")
    _same_architecture(client)
    python = str(getattr(sys, "_base_executable", None) or sys.executable)
    host = _probe(python)
    bin_dir = os.path.dirname(python)
    log(f"copying Python {host['version']} from {host['prefix']}")
    with tempfile.TemporaryFile() as stream:
        with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as tar:
            root = _RootFs(tar)
            _skeleton(root)
            root.mirror(python)
            for folder in host["stdlib"]:
                root.tree(folder)
            for path in (*SYSTEM_FILES, *host["data"]):
                root.tree(path)
            for relative, file in packages.files:
                root.place(f"{host['site']}/{relative}", file)
            for library in _libraries([python, *root.elf_files]):
                root.mirror(library)
            for name in ("python3", "python"):
                root.link(f"/usr/local/bin/{name}", python)
                root.link(f"{bin_dir}/{name}", python)
        size = stream.tell()
        log(f"importing {size / 1e6:.0f} MB as {tag}")
        stream.seek(0)
        folders = dict.fromkeys((bin_dir, "/usr/local/bin", "/usr/bin", "/bin"))
        labels = {
            LABEL: "1",
            "isograd.python": host["version"],
            "isograd.packages": packages.label,
            "isograd.base": "host",
        }
        repository, version = _split(tag)
        reply = client.api.import_image_from_stream(
            iter(lambda: stream.read(1 << 20), b""),  # chunks: a file would be sent with a length
            repository=repository,
            tag=version,
            changes=[
                f"ENV PATH={json.dumps(':'.join(folders))} LANG=C.UTF-8",
                "LABEL " + " ".join(f"{key}={json.dumps(text)}" for key, text in labels.items()),
            ],
        )
        if '"error"' in str(reply):
            raise SandboxUnavailable(
                f"the daemon refused the image: {str(reply).strip()[:300]}; type `docker info`"
            )


def _split(tag: str) -> tuple[str, str]:
    repository, colon, version = tag.rpartition(":")
    return (repository, version) if colon and "/" not in version else (tag, "latest")


def _probe(python: str) -> dict[str, Any]:
    """What the base interpreter says of itself; a virtual environment's would say otherwise."""
    done = subprocess.run(
        [python, "-I", "-c", PROBE], capture_output=True, text=True, check=False, timeout=60
    )
    if done.returncode:
        raise SandboxUnavailable(
            f"{python} does not start: {done.stderr.strip()[-300:]}; "
            "type the command with another Python's isograd"
        )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _skeleton(root: _RootFs) -> None:
    for path, mode in {
        **dict.fromkeys(("/dev", "/proc", "/sys", "/etc", "/run", "/var"), 0o755),
        **dict.fromkeys(("/tmp", "/var/tmp"), 0o1777),
    }.items():
        root.directory(path, mode)
    root.text("/etc/passwd", PASSWD)
    root.text("/etc/group", GROUP)
    root.text("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n")


def _libraries(files: Sequence[str]) -> list[str]:
    """Every shared library, and the loader, that these files need on this host."""
    found: dict[str, None] = {}
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
    for start in range(0, len(files), 200):
        done = subprocess.run(
            ["ldd", *files[start : start + 200]],
            capture_output=True,
            text=True,
            check=False,
            env=environment,  # as inside: without this shell's LD_LIBRARY_PATH
        )
        found.update(dict.fromkeys(re.findall(r"(?:=> |^\s+)(/.+) \(0x", done.stdout, re.M)))
    libc = [Path(path).parent for path in found if Path(path).name.startswith("libc.")]
    extra = [folder / name for folder in libc for name in BESIDE_LIBC]
    return [*found, *(str(path) for path in extra if path.exists())]


class _RootFs:
    """A root file system as a tar stream: owned by root, and readable by everybody.

    ``mirror`` and ``tree`` copy what this host has to the same path. A link stays a link and its
    target comes too, so ``/lib -> usr/lib`` and an interpreter behind three links look inside as
    they look here.
    """

    def __init__(self, tar: tarfile.TarFile) -> None:
        self.elf_files: list[str] = []
        self._tar = tar
        self._made = {"/"}
        self._placed: set[str] = set()
        self._links: dict[str, str] = {}

    def directory(self, path: str, mode: int = 0o755) -> str:
        """Make a directory and those above it; returns its path with no link in it."""
        if path == "/":
            return path
        here = self._below_parents(path)
        if here not in self._made and os.path.islink(here):
            self._emit_link(here, os.readlink(here))
        if here in self._links:
            return self.directory(_joined(here, self._links[here]))
        if here not in self._made:
            self._emit(here, tarfile.DIRTYPE, mode)
        return here

    def text(self, path: str, content: str) -> None:
        self._emit_bytes(self._below_parents(path), content.encode(), 0o644, mtime=0)

    def link(self, path: str, target: str) -> None:
        here = self._below_parents(path)
        if here not in self._made and path != target:
            self._emit_link(here, target)

    def place(self, path: str, host: Path, *, compiled: bool = True) -> None:
        """A file of this host under another path."""
        self._placed.add(os.path.realpath(host))
        self._emit_file(self._below_parents(path), host, compiled=compiled)

    def mirror(self, path: str) -> None:
        """A file of this host under its own path, and whatever it is a link to."""
        if not os.path.lexists(path):
            return
        if ".." in Path(path).parts:
            path = str(Path(path).parent.resolve() / Path(path).name)
        if os.path.realpath(path) in self._placed:
            return  # a package's own library, found beside it inside too
        here = self._below_parents(path)
        if here in self._made:
            return
        if os.path.islink(here):
            self._emit_link(here, os.readlink(here))
            self.tree(_joined(here, self._links[here]))
        elif Path(here).is_file():
            self._emit_file(here, Path(here))

    def tree(self, path: str) -> None:
        """A folder of this host under its own path, less what no program asks for."""
        if not Path(path).is_dir() or Path(path).is_symlink():
            self.mirror(path)
            return
        path = self.directory(path)
        for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
            if entry.name in LEFT_OUT or LEFT_OUT_PATTERN.match(entry.name):
                continue
            if Path(path).name == "test" and entry.name not in ("__init__.py", "support"):
                continue  # 30 MB of CPython's own tests; `import test` still works
            if entry.is_dir(follow_symlinks=False):
                self.tree(entry.path)
            else:
                self.mirror(entry.path)

    def _below_parents(self, path: str) -> str:
        parent, name = os.path.split(path)
        return os.path.join(self.directory(parent), name)

    def _emit_file(self, here: str, host: Path, *, compiled: bool = True) -> None:
        if here in self._made:
            return
        content, status = host.read_bytes(), host.stat()
        elf = content.startswith(b"\x7fELF")
        mode = 0o755 if elf or status.st_mode & 0o100 else 0o644
        self._emit_bytes(here, content, mode, mtime=int(status.st_mtime))
        if elf:
            self.elf_files.append(str(host))
        if compiled and here.endswith(".py") and "/tests/" not in here:
            pyc = _compiled(host, here, status)
            folder, name = os.path.split(here)
            cache = f"{folder}/__pycache__/{name[:-3]}.{sys.implementation.cache_tag}.pyc"
            if pyc and cache not in self._made:
                self._emit_bytes(self._below_parents(cache), pyc, 0o644, mtime=0)

    def _emit_bytes(self, here: str, content: bytes, mode: int, *, mtime: int) -> None:
        self._emit(here, tarfile.REGTYPE, mode, content=content, mtime=mtime)

    def _emit_link(self, here: str, target: str) -> None:
        self._links[here] = target
        self._emit(here, tarfile.SYMTYPE, 0o777, linkname=target)

    def _emit(
        self,
        here: str,
        kind: bytes,
        mode: int,
        *,
        content: bytes = b"",
        linkname: str = "",
        mtime: int = 0,
    ) -> None:
        self._made.add(here)
        entry = tarfile.TarInfo(here.lstrip("/"))  # owned by 0:0 unless told otherwise
        entry.type, entry.mode, entry.linkname = kind, mode, linkname
        entry.size, entry.mtime = len(content), mtime
        self._tar.addfile(entry, io.BytesIO(content))


def _joined(link: str, target: str) -> str:
    """Where a link leads, given the real path of the link itself."""
    return os.path.normpath(os.path.join(os.path.dirname(link), target))


def _compiled(host: Path, inside: str, status: os.stat_result) -> bytes | None:
    """Bytecode that is valid inside, where nothing can be written: this host's, or made now."""
    try:
        cached = Path(importlib.util.cache_from_source(str(host))).read_bytes()
    except OSError:
        cached = b""
    if cached[:4] == importlib.util.MAGIC_NUMBER:
        flags, mtime, size = (int.from_bytes(cached[i : i + 4], "little") for i in (4, 8, 12))
        source = (int(status.st_mtime) & 0xFFFFFFFF, status.st_size & 0xFFFFFFFF)
        if flags or (mtime, size) == source:
            return cached
    with tempfile.TemporaryDirectory(prefix="isograd-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        target = Path(folder) / "pyc"
        try:
            py_compile.compile(
                str(host),
                cfile=str(target),
                dfile=inside,
                doraise=True,
                invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
            )
        except (py_compile.PyCompileError, ValueError):
            return None  # a template or a test's broken file; the source is there
        return target.read_bytes()


# -- packages --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Packages:
    """Files by their path below site-packages, and the distributions that they belong to."""

    files: Sequence[tuple[str, Path]]
    names: Sequence[str]

    @property
    def label(self) -> str:
        return " ".join(sorted(self.names))


@contextmanager
def _packages(
    specs: Sequence[str], *, portable: bool, client: docker.DockerClient, log: Log
) -> Iterator[Packages]:
    """This host's distributions and all they require; staged by pip if one is not here.

    ``portable`` asks for such as run on another Linux too: wheels that say so.
    """
    if not specs:
        yield Packages((), ())
        return
    here = _installed(specs, portable=portable)
    if here is not None:
        yield _files_of(here)
        return
    with tempfile.TemporaryDirectory(prefix="isograd-") as folder:
        _stage(specs, folder, client, log)
        yield _files_of(metadata.distributions(path=[folder]))


def _installed(specs: Sequence[str], *, portable: bool) -> list[metadata.Distribution] | None:
    found: dict[str, metadata.Distribution] = {}
    wanted = [(spec, True) for spec in specs]
    while wanted:
        spec, needed = wanted.pop()
        name = _canonical(_name(spec))
        if name in found:
            continue
        try:
            one = metadata.distribution(_name(spec))
        except metadata.PackageNotFoundError:
            if needed:
                return None
            continue  # for another platform or Python
        if _editable(one):
            raise InputError(
                f"{name} is installed as editable: type `pip install` without -e first"
            )
        exact = re.fullmatch(r"[^=<>!~;\[ ]+(==([\w.+!-]+))?", spec.strip())
        if spec in specs and (exact is None or exact[2] not in (None, one.version)):
            return None
        if one.files is None or (portable and not _portable(one)):
            return None
        found[name] = one
        for requirement in one.requires or ():
            marker = requirement.partition(";")[2]
            if not re.search(r"\bextra\b", marker):
                wanted.append((requirement, not marker))
    return list(found.values())


def _editable(one: metadata.Distribution) -> bool:
    direct = json.loads(one.read_text("direct_url.json") or "{}")
    return bool(direct.get("dir_info", {}).get("editable"))


def _portable(one: metadata.Distribution) -> bool:
    tags = re.findall(r"^Tag: (.+)$", one.read_text("WHEEL") or "", re.M)
    return sys.platform == "linux" and any("manylinux" in t or t.endswith("-any") for t in tags)


def _stage(specs: Sequence[str], folder: str, client: docker.DockerClient, log: Log) -> None:
    log(f"staging {', '.join(specs)} with pip")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile"]
    command += ["--disable-pip-version-check", "--target", folder]
    if sys.platform != "linux":
        machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(str(client.version()["Arch"]))
        command += ["--only-binary=:all:", "--python-version", _minor()]
        command += [f"--platform=manylinux_2_28_{machine}", f"--platform=manylinux2014_{machine}"]
    done = subprocess.run([*command, *specs], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "ERROR" in line] or ["pip failed"]
        raise InputError(
            f"{' '.join(specs)} cannot be installed ({lines[-1][:300]}): "
            f"type `pip install {' '.join(specs)}` here and see why"
        )


def _files_of(distributions: Iterable[metadata.Distribution]) -> Packages:
    files: dict[str, Path] = {}
    names = []
    for one in distributions:
        names.append(f"{_canonical(one.metadata['Name'])}=={one.version}")
        for path in one.files or ():
            host = Path(str(one.locate_file(path)))
            outside = path.is_absolute() or ".." in path.parts  # scripts, man pages
            if not outside and path.suffix != ".pyc" and host.is_file():
                files[path.as_posix()] = host
    return Packages(sorted(files.items()), names)


def _minor() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _name(spec: str) -> str:
    match = re.match(r"\s*([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)", spec)
    if match is None:
        raise InputError(f"{spec!r} is not a package's name: type one such as --with numpy")
    return match[1]


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
