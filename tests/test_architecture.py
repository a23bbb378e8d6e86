"""The shape of the package: who imports whom, what is public, what works where."""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import isograd

SOURCE = Path(isograd.__file__).parent

LAYERS = {
    "_lazy": set(),
    "errors": set(),
    "contract": {"errors"},
    "runner": set(),
    "daemon": {"errors"},
    "images": {"daemon", "errors"},
    "sandbox": {"contract", "daemon", "errors", "images", "runner"},
    "formats": {"contract", "errors"},
    "scoring": {"contract", "errors", "formats", "sandbox"},
    "parity": {"contract", "errors", "sandbox"},
    "report": {"contract", "errors", "scoring"},
    "doctor": {"contract", "errors", "sandbox"},
    "batch": {"contract", "errors", "formats", "report", "sandbox", "scoring"},
    "demo": set(),
    "redteam": {"contract", "errors", "sandbox"},
}


def imported(path: Path) -> set[str]:
    """The rooms of isograd that a file imports at any depth, type checking included."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module)
    return {name.split(".")[1] for name in found if name.startswith("isograd.")}


def files(room: str) -> list[Path]:
    place = SOURCE / room
    return sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]


@pytest.mark.parametrize("room", LAYERS)
def test_imports_go_one_way(room: str) -> None:
    """Each room imports only what stands before it."""
    for path in files(room):
        assert imported(path) - {room, "_lazy"} <= LAYERS[room], path.name


def test_every_room_is_known() -> None:
    """A new room has to say where it stands."""
    rooms = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert rooms - {"__init__", "__main__", "__pycache__", "cli", "_images"} == set(LAYERS)


def test_the_runner_is_the_standard_library() -> None:
    """What is shipped behind the wall imports the standard library and itself."""
    for path in files("runner"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            for name in names:
                assert name.split(".")[0] in sys.stdlib_module_names, (path.name, name)


def test_the_public_surface_is_exact() -> None:
    """These names stay; nothing else is promised."""
    assert set(isograd.__all__) == {
        "Assertions", "BubblewrapSandbox", "DockerSandbox", "Envelope", "ExitCode", "FakeSandbox", "InputError",
        "IsogradError", "Job", "Limits", "Measurement", "OptInRequired", "Pool", "Program",
        "Reason", "Result", "Sample", "Sandbox", "SandboxCrashed", "SandboxError",
        "SandboxUnavailable", "SubprocessSandbox", "Task", "extract_code", "grade", "pass_at_k",
        "pass_at_k_estimator", "run_candidate", "score", "score_code_exec",
    }  # fmt: skip
    for name in isograd.__all__:
        assert getattr(isograd, name) is not None


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_is_light() -> None:
    """The library and the command load no client, no tables and no models before they need them."""
    loaded = run_python(
        """
        import sys, isograd, isograd.cli
        heavy = ("docker", "requests", "rich", "numpy", "pydantic")
        print([name for name in heavy if name in sys.modules])
        """
    )
    assert loaded.strip() == "[]"


BLOCK = """
import os, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name in ("resource", "fcntl", "pwd", "grp", "termios"):
            raise ImportError(f"no {name} here", name=name)

for name in ("resource", "fcntl", "pwd", "grp", "termios"):
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Blocked())
"""

FORKLESS = (
    "for name in ('fork', 'forkpty', 'set_blocking', 'getuid', 'geteuid'):\n"
    "    hasattr(os, name) and delattr(os, name)\n"
)


def test_the_subprocess_wall_says_what_it_lacks() -> None:
    """Without resource, fcntl and fork everything imports, and the refusal names them."""
    said = run_python(
        BLOCK
        + FORKLESS
        + textwrap.dedent(
            """
            import isograd, isograd.cli, isograd.batch, isograd.doctor, isograd.parity
            import isograd.images, isograd.report
            try:
                isograd.SubprocessSandbox(allow_code_exec=True)
            except isograd.SandboxUnavailable as error:
                print(error)
            """
        )
    )
    for lack in ("resource", "fcntl", "os.fork", "--sandbox docker"):
        assert lack in said


def test_a_results_file_works_without_fcntl(tmp_path: Path) -> None:
    """Where there is no fcntl, results are kept all the same."""
    run_python(
        BLOCK
        + textwrap.dedent(
            f"""
            from pathlib import Path
            from isograd.report import ResultsFile
            for resume in (False, True):
                with ResultsFile(Path({str(tmp_path / "r.jsonl")!r}), {{"a": 1}}, resume=resume):
                    pass
            """
        )
    )
    assert (tmp_path / "r.jsonl").read_text().count("\n") == 1


def test_the_container_wall_works_without_them(docker_image: str) -> None:
    """On a host without resource, fcntl and fork, a container grades as ever."""
    said = run_python(
        BLOCK
        + FORKLESS
        + textwrap.dedent(
            """
            from isograd import Assertions, DockerSandbox, Job
            with DockerSandbox() as sandbox:
                job = Job(code="one = 1", checks=Assertions(["one == 1"]))
                print(sandbox.run(job).exit_code.value)
            """
        )
    )
    assert said.strip() == "pass"


def test_nothing_names_a_machine_or_a_registry() -> None:
    """No tracked text holds a registry's host or a path of somebody's machine."""
    root = SOURCE.parents[1]
    listed = subprocess.run(
        ["git", "ls-files"], cwd=root, capture_output=True, text=True, check=False
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    words = ["pypi" + ".org", "python" + "hosted", "deb.debian" + ".org", "registry-1." + "docker"]
    words += ["/" + "work/main", "/" + "root/", "registry." + "npmjs"]
    for name in listed.stdout.splitlines():
        path = root / name
        if path.is_file():
            text = path.read_text("utf-8", "replace")
            assert [word for word in words if word in text] == [], name
