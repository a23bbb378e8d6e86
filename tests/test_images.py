"""Images: what is in them, how they are named, and what an error tells the user to type."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import cast

import docker
import pytest
from docker.errors import DockerException

from isograd import images
from isograd.errors import InputError, SandboxUnavailable

MINOR = f"{sys.version_info.major}.{sys.version_info.minor}"
SMALL = "annotated-types"  # pure Python, and a dependency of ours, so always here


@pytest.fixture(scope="module")
def client(docker_host: str) -> Iterator[docker.DockerClient]:
    client = docker.DockerClient(base_url=docker_host, timeout=600)
    yield client
    client.close()


@pytest.fixture(scope="module")
def host_image(client: docker.DockerClient) -> Iterator[str]:
    tag = "isograd/test-images:host"
    yield images.build(from_host=True, tag=tag, client=client).tag
    client.images.remove(tag, force=True)


def _python(client: docker.DockerClient, image: str, code: str) -> object:
    """What ``code`` prints as JSON, as a stranger in a container that can write nothing."""
    output = client.containers.run(
        image,
        ["python3", "-I", "-c", code],
        network_mode="none",
        read_only=True,
        user="40001:40001",
        remove=True,
    )
    return json.loads(output)


@pytest.mark.parametrize(
    ("packages", "tag"),
    [
        ((), "3.12"),
        (("numpy", "pandas"), "3.12-numpy-pandas"),
        (("pandas", "NumPy"), "3.12-numpy-pandas"),
        (("Typing_Extensions",), "3.12-typing-extensions"),
    ],
)
def test_the_default_tag_says_what_is_inside(packages: tuple[str, ...], tag: str) -> None:
    """Order and spelling of the packages do not make another image."""
    assert images.default_tag("3.12", packages) == f"isograd/python:{tag}"


def test_the_default_tag_is_this_hosts_version() -> None:
    assert images.default_tag() == f"isograd/python:{MINOR}"


def test_a_version_or_many_packages_make_a_tag_of_their_own() -> None:
    """No two sets of packages share a tag, and none is longer than Docker allows."""
    many = [f"package-number-{n}" for n in range(30)]
    tags = [
        images.default_tag("3.12", with_)
        for with_ in (["numpy"], ["numpy==1.26.4"], ["numpy==2.0.0"], many, many[:-1])
    ]
    assert len(set(tags)) == len(tags)
    assert all(len(tag.rpartition(":")[2]) <= 128 for tag in tags)


@pytest.mark.parametrize("spec", ["", "--index-url=x", "/etc"])
def test_what_is_not_a_package_is_refused(spec: str) -> None:
    with pytest.raises(InputError, match="not a package's name"):
        images.default_tag(with_=[spec])


def test_host_image_has_the_very_same_python(client: docker.DockerClient, host_image: str) -> None:
    """Version, prefix and library paths are the host's, also for an unprivileged stranger."""
    code = """
import json, platform, sys, sysconfig
print(json.dumps([platform.python_version(), sys.prefix, sysconfig.get_path("stdlib"),
                  sysconfig.get_config_var("EXT_SUFFIX"), platform.libc_ver()[1]]))
"""
    assert _python(client, host_image, code) == [
        platform.python_version(),
        sys.base_prefix,
        sysconfig.get_path("stdlib"),
        sysconfig.get_config_var("EXT_SUFFIX"),
        platform.libc_ver()[1],
    ]


def test_host_image_imports_what_the_host_imports(
    client: docker.DockerClient, host_image: str
) -> None:
    """Every module of the standard library that this interpreter can import, it can too."""
    code = """
import importlib.util, json, sys, warnings
warnings.simplefilter("ignore")
absent = {}
for name in sorted(sys.stdlib_module_names - {"antigravity", "this", "idlelib", "turtledemo"}):
    if name.startswith(("_test", "_xx", "xx", "_ctypes_test")):
        continue
    try:
        if importlib.util.find_spec(name) is not None:
            __import__(name)
            continue
        absent[name] = "no spec"
    except BaseException as error:
        absent[name] = type(error).__name__
print(json.dumps(absent))
"""
    base = str(getattr(sys, "_base_executable", sys.executable))
    here = subprocess.run([base, "-I", "-c", code], capture_output=True, check=True).stdout
    assert _python(client, host_image, code) == json.loads(here)


def test_host_image_compiles_nothing_again(client: docker.DockerClient, host_image: str) -> None:
    """The root cannot be written, so what is imported has to come with valid bytecode."""
    code = """
import importlib.machinery, json
compiled = []
class Watched(importlib.machinery.SourceFileLoader):
    def source_to_code(self, data, path, *, _optimization=-1):
        compiled.append(path)
        return super().source_to_code(data, path, _optimization=_optimization)
import sys
suffixes = [(importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES),
            (Watched, importlib.machinery.SOURCE_SUFFIXES)]
sys.path_hooks.insert(0, importlib.machinery.FileFinder.path_hook(*suffixes))
sys.path_importer_cache.clear()
import asyncio, decimal, email.message, sqlite3, ssl, unittest.mock, xml.dom.minidom, zipfile
print(json.dumps(compiled))
"""
    assert _python(client, host_image, code) == []


def test_host_image_is_readable_and_owned_by_root(
    client: docker.DockerClient, host_image: str, tmp_path: Path
) -> None:
    """Also where the interpreter lives below a home folder that is closed on this host."""
    container = client.containers.create(host_image, ["none"])
    try:
        with (tmp_path / "root.tar").open("wb") as file:
            file.writelines(cast(Iterator[bytes], container.export()))
    finally:
        container.remove()
    with tarfile.open(tmp_path / "root.tar") as tar:
        entries = {entry.name.rstrip("/"): entry for entry in tar}
    closed = [e.name for e in entries.values() if e.uid or e.gid or e.mode & 0o444 != 0o444]
    closed += [e.name for e in entries.values() if e.isdir() and e.mode & 0o555 != 0o555]
    assert closed == []
    assert entries["tmp"].mode & 0o7777 == 0o1777
    assert not any("site-packages/pip" in name for name in entries)


def test_host_image_says_what_it_is(client: docker.DockerClient, host_image: str) -> None:
    image = client.images.get(host_image)
    assert image.labels["isograd.image"] == "1"
    assert image.labels["isograd.python"] == platform.python_version()
    assert not image.attrs["Config"]["Cmd"]
    assert not image.attrs["Config"]["Entrypoint"]


def test_packages_come_from_this_host(client: docker.DockerClient) -> None:
    """The version inside is the one installed here; what it requires comes along."""
    tag = "isograd/test-images:with"
    code = """
import importlib.metadata, json, annotated_types
print(json.dumps(sorted(f"{d.name}=={d.version}" for d in importlib.metadata.distributions())))
"""
    try:
        image = images.build(from_host=True, with_=[SMALL], tag=tag, client=client)
        label = client.images.get(image.id).labels["isograd.packages"].split()
        found = _python(client, tag, code)
    finally:
        client.images.remove(tag, force=True)
    assert f"{SMALL}=={metadata.version(SMALL)}" in label
    assert isinstance(found, list)
    assert sorted(name.replace("_", "-") for name in found) == label


def test_a_second_build_replaces_the_first(client: docker.DockerClient) -> None:
    """The tag moves, and what it stood for is not left behind without a name."""
    tag = "isograd/test-images:twice"
    try:
        first = images.build(from_host=True, tag=tag, client=client)
        second = images.build(from_host=True, tag=tag, client=client)
        assert images.present(tag, client) == second
        left = [image.id for image in client.images.list()]
        assert first.id == second.id or first.id not in left
    finally:
        client.images.remove(tag, force=True)


def test_the_dockerfile_builds_without_a_network(
    client: docker.DockerClient, host_image: str
) -> None:
    """On any base with this Python; no step but the pull of the base needs a network."""
    tag = "isograd/test-images:base"
    lines: list[str] = []
    try:
        images.build(base=host_image, with_=[SMALL], tag=tag, client=client, log=lines.append)
        code = "import json, annotated_types; print(json.dumps(annotated_types.__file__))"
        where = _python(client, tag, code)
        labels = client.images.get(tag).labels
    finally:
        client.images.remove(tag, force=True)
    assert str(where).endswith("-packages/annotated_types/__init__.py")
    assert labels["isograd.python"] == platform.python_version()
    assert labels["isograd.base"].startswith("sha256:")
    assert lines


def test_a_base_that_cannot_be_pulled_names_the_way_out(client: docker.DockerClient) -> None:
    base = "localhost:9/isograd/no-such-base:1"
    with pytest.raises(SandboxUnavailable, match="isograd image build --from-host"):
        images.build(base=base, client=client)


def test_absent_is_none(client: docker.DockerClient) -> None:
    assert images.present("isograd/test-images:never-built", client) is None


def test_no_daemon_is_one_line_that_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    with pytest.raises(SandboxUnavailable, match="start it") as caught:
        images.build(from_host=True)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value.__cause__, DockerException | OSError)


def test_host_and_base_are_not_both(client: docker.DockerClient) -> None:
    with pytest.raises(InputError, match="--base"):
        images.build(from_host=True, base="x", client=client)
