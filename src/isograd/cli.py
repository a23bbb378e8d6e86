"""The command: arguments in, exit statuses out, no logic.

Exit status: 0 done; 1 below ``--fail-under``, or parity found a divergence; 2 bad usage or input;
3 infrastructure; 130 and 143 on SIGINT and SIGTERM.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from isograd.errors import InputError, IsogradError

if TYPE_CHECKING:
    from isograd.contract import Limits
    from isograd.sandbox import Sandbox

_DONE, _BELOW, _INFRASTRUCTURE = 0, 1, 3
_SAMPLE_TEXT = ["auto", "first", "last", "none"]


class _Terminated(BaseException):
    """SIGTERM, as an exception, so that lanes are closed and files are whole."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The console script."""

    def terminate(*_: object) -> None:
        raise _Terminated

    with contextlib.suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGTERM, terminate)
    words = list(sys.argv[1:] if arguments is None else arguments)
    kept = any(word.partition("=")[0] == "--out" for word in words)
    advice = ": add --resume to the same command to go on" if kept else ""
    try:
        status = cli(args=words, prog_name="isograd", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        status = error.exit_code
    except click.ClickException as error:
        _complain(_usage(error))
        status = error.exit_code
    except (KeyboardInterrupt, click.Abort):
        _complain(f"interrupted{advice}")
        status = 130
    except _Terminated:
        _complain(f"terminated{advice}")
        status = 143
    except IsogradError as error:
        _complain(str(error))
        status = error.exit_status
    sys.exit(status or 0)


def _complain(message: str) -> None:
    with contextlib.suppress(OSError):  # nobody reads stderr: the exit status is left
        click.echo(f"isograd: {message}", err=True)


def _usage(error: click.ClickException) -> str:
    """What is wrong with the command line, in one line, and where help is to be had."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "isograd"
    return f"{' '.join(error.format_message().split()).rstrip('.')}: type: {command} --help"


@contextlib.contextmanager
def _printing() -> Iterator[None]:
    """For what prints to stdout: who closes it early changes no exit status."""
    if sys.stdout is not None and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        yield
    except (BrokenPipeError, SystemExit):  # rich makes the one of the other
        _leave_stdout()
    except OSError as error:
        _leave_stdout()
        raise IsogradError(f"cannot print: {error.strerror}: send stdout elsewhere") from error


@contextlib.contextmanager
def _importing() -> Iterator[None]:
    """For large imports: what they make lives to the end, and is not looked through for garbage."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _leave_stdout() -> None:
    """What is still to be flushed at the exit goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="isograd")
def cli() -> None:
    """Run model-written code in a sandbox and grade it by what it does."""


def _options(*options: Callable[..., Any]) -> Callable[..., Any]:
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return add


_allow = click.option(
    "--allow-code-exec",
    is_flag=True,
    help="Allow the subprocess sandbox to run model-written code on this host.",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
_wall = _options(
    click.option("--image", help="The container image."),
    click.option("--runtime", help="The OCI runtime, such as runsc."),
    click.option(
        "--package",
        "packages",
        multiple=True,
        metavar="NAME",
        help="A distribution that candidates may import; may be repeated.",
    ),
    click.option(
        "--preload",
        callback=lambda context, option, names: tuple(filter(None, (names or "").split(","))),
        metavar="NAMES",
        help="Modules that each candidate finds loaded, such as numpy,pandas.",
    ),
    click.option("--spawn", type=click.Choice(["zygote", "fresh"]), help="How candidates start."),
    click.option("--recycle", type=click.IntRange(1), help="A new lane after N candidates."),
    _allow,
)
_sandbox = click.option(
    "--sandbox",
    default="subprocess",
    show_default=True,
    metavar="WALL",
    help="subprocess or docker; subprocess:fresh, docker:runsc, …",
)
_limits = _options(
    click.option(
        "--grading",
        type=click.Choice(["auto", "split", "shared"]),
        default="auto",
        show_default=True,
        help="Candidate and checks in two processes, or in one.",
    ),
    click.option("--timeout", type=float, default=3.0, show_default=True, metavar="SECONDS"),
    click.option(
        "--timeout-ceiling", type=float, default=30.0, show_default=True, metavar="SECONDS"
    ),
    click.option("--memory-mb", type=click.IntRange(16), default=512, show_default=True),
)
_batch = _options(
    click.option("--tasks", required=True, metavar="FILE|NAME", help='A file, or "humaneval".'),
    click.option("--samples", required=True, metavar="FILE", type=click.Path(path_type=Path)),
    click.option("--format", "format_", help="The tasks' format, instead of looking at them."),
    click.option("--allow-bad-tasks", is_flag=True, help="Leave out tasks whose line is bad."),
    click.option("--stop", "stops", multiple=True, metavar="STR", help="Cut samples at STR."),
    click.option(
        "--extraction", type=click.Choice(_SAMPLE_TEXT), default="auto", show_default=True
    ),
    click.option(
        "--workers", type=click.IntRange(1), default=os.cpu_count() or 1, show_default="processors"
    ),
)


@cli.command()
@_batch
@_sandbox
@_wall
@_limits
@click.option("--k", "ks", default="1,10,100", show_default=True, metavar="K,…")
@click.option("--out", type=click.Path(path_type=Path), help="Append results to this file.")
@click.option("--resume", is_flag=True, help="Go on with the file that --out names.")
@click.option("--retry-timeouts", is_flag=True, help="Run what timed out once more, alone.")
@click.option(
    "--dedupe/--no-dedupe",
    default=True,
    show_default=True,
    help="Run identical samples of a task once, and count the verdict for each.",
)
@click.option("--fail-under", type=float, metavar="X", help="Exit with 1 if pass@1 is below X.")
@_json
def run(
    ks: str,
    out: Path | None,
    resume: bool,
    retry_timeouts: bool,
    dedupe: bool,
    fail_under: float | None,
    as_json: bool,
    **settings: Any,
) -> int:
    """Grade a file of samples and give pass@k."""
    from isograd.batch import parse_ks, run_batch

    try:
        wanted = parse_ks(ks)
    except ValueError:
        raise InputError(f"--k {ks}: give positive whole numbers, such as 1,10,100") from None
    if resume and out is None:
        raise InputError("--resume goes on with a results file: add --out FILE")
    if fail_under is not None and not 0 <= fail_under <= 1:
        raise InputError(f"--fail-under {fail_under}: give a share from 0 to 1, such as 0.85")
    make = _only_maker(settings.pop("sandbox"), settings)
    batch = _read_batch(settings)
    with _progress(len(batch.samples)) as advance:
        summary = run_batch(
            batch,
            make,
            lanes=settings["workers"],
            out=out,
            resume=resume,
            retry_timeouts=retry_timeouts,
            dedupe=dedupe,
            on_result=lambda result: advance(),
        )
    return _report(summary, wanted, fail_under, as_json)


def _report(summary: Any, ks: Sequence[int], fail_under: float | None, as_json: bool) -> int:
    report = summary.as_json(ks)
    with _printing():
        if as_json:
            click.echo(json.dumps(report))
        else:
            from rich.console import Console

            from isograd.report.table import print_summary

            print_summary(report, Console())
    if summary.faults:
        _complain(
            f"{len(summary.faults)} samples not graded, by our fault: "
            "--out FILE --resume grades only what is missing"
        )
        return _INFRASTRUCTURE
    passed = summary.pass_at_k([1]).get(1, 0.0)
    if fail_under is not None and passed < fail_under:
        _complain(f"pass@1 {passed:.4f} is below {fail_under}")
        return _BELOW
    return _DONE


@cli.command(name="exec")
@click.argument("file", type=click.File("rb"))
@click.option("--check", "checks", multiple=True, metavar="EXPR", help="May be repeated.")
@click.option(
    "--entry-point", metavar="NAME", help="What the checks are about, if a builtin's name."
)
@_sandbox
@_wall
@_limits
@_json
def exec_(
    file: Any,
    checks: Sequence[str],
    entry_point: str | None,
    sandbox: str,
    as_json: bool,
    **settings: Any,
) -> int:
    """Run one candidate, FILE or - for standard input, and print its envelope as JSON."""
    try:
        code = file.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{file.name}: not UTF-8 at byte {error.start}") from None
    make = _only_maker(sandbox, settings)
    with make() as wall:
        wall.start()
        with _importing():  # takes as long as the lane's start
            from isograd.contract import Assertions, Job

        envelope = wall.run(
            Job(
                code=code,
                checks=Assertions(checks),
                limits=_limits_of(settings),
                entry_point=entry_point,
                grading=settings["grading"],
            )
        )
    plain = as_json or sys.stdout is None or not sys.stdout.isatty()
    text = envelope.model_dump_json(indent=None if plain else 2)
    with _printing():
        click.echo(text.encode("utf-8", "backslashreplace"))
    return _DONE


@cli.command()
@_batch
@click.option("--sandbox", "sandboxes", multiple=True, required=True, metavar="WALL")
@_wall
@_limits
@click.option(
    "--compare",
    "by",
    type=click.Choice(["bytes", "verdict"]),
    help="What must agree; verdict for gVisor, else bytes.",
)
@_json
def parity(sandboxes: Sequence[str], by: str | None, as_json: bool, **settings: Any) -> int:
    """Grade the same samples behind several walls and compare the envelopes."""
    from isograd.parity import compare

    makers = {name: _maker(name, settings) for name in sandboxes}
    again = {
        name: _maker(name, {**settings, "spawn": "fresh", "preload": ()}) for name in sandboxes
    }
    batch = _read_batch(settings)
    gvisor = any("runsc" in name for name in [*sandboxes, settings["runtime"] or ""])
    with _progress(len(batch.samples)) as advance:
        outcome = compare(
            batch.jobs(),
            makers,
            again=again,
            lanes=settings["workers"],
            by="verdict" if by == "verdict" or (by is None and gvisor) else "bytes",
            progress=lambda done: advance(),
        )
    with _printing():
        if as_json:
            click.echo(json.dumps(outcome.as_json()))
        else:
            _print_parity(outcome)
    if outcome.faults:
        return _INFRASTRUCTURE
    return _DONE if outcome.agrees else _BELOW


def _print_parity(outcome: Any) -> None:
    from isograd.parity import differing_facts

    for fact in differing_facts(outcome.sides):
        click.echo(f"the environments differ: {fact}")
    for name, count in outcome.as_json().items():
        if isinstance(count, int):
            click.echo(f"{name:>18} {count}")
    for difference in outcome.differences:
        click.echo(f"{difference.kind}: {difference.task_id} sample {difference.sample}")
        if difference.kind == "divergent":
            for side, envelopes in difference.envelopes.items():
                click.echo(f"  {side}: {envelopes[0].model_dump_json()[:600]}")
    for task_id, sample, fault in outcome.faults:
        click.echo(f"not compared, our fault: {task_id} sample {sample}: {fault}", err=True)


@cli.group()
def image() -> None:
    """The container lanes' images."""


@image.command()
@click.option("--from-host", is_flag=True, help="Take this host's Python; needs no registry.")
@click.option("--with", "with_", multiple=True, metavar="NAMES", help="Distributions to put in.")
@click.option("--tag", help="Another name than isograd/python:MINOR.")
@click.option("--base", help="Another base image than the official one.")
def build(from_host: bool, with_: Sequence[str], tag: str | None, base: str | None) -> int:
    """Build an image for this Python's minor version."""
    from isograd.images import build as build_image

    names = [name.strip() for part in with_ for name in part.split(",") if name.strip()]
    build_image(
        from_host=from_host,
        with_=names,
        tag=tag,
        base=base,
        log=lambda line: click.echo(line, err=True),
    )
    return _DONE


@cli.command()
@click.option("--sandbox", "sandboxes", multiple=True, metavar="WALL")
@_wall
@_json
def doctor(sandboxes: Sequence[str], as_json: bool, **settings: Any) -> int:
    """Verify each protection from inside the wall."""
    from isograd.doctor import examine

    settings["allow_code_exec"] = True  # the only code that runs is the doctor's own
    found: dict[str, Any] = {}
    for name in sandboxes or ("subprocess", "docker"):
        try:
            with _maker(name, settings)() as wall:
                found[name] = [vars(finding) for finding in examine(wall)]
        except IsogradError as error:
            if sandboxes:
                raise
            found[name] = str(error)
    with _printing():
        if as_json:
            click.echo(json.dumps(found))
        else:
            _print_findings(found)
    examined = [findings for findings in found.values() if not isinstance(findings, str)]
    sound = all(finding["holds"] for findings in examined for finding in findings)
    return _DONE if examined and sound else _INFRASTRUCTURE


def _print_findings(found: dict[str, Any]) -> None:
    for name, findings in found.items():
        click.echo(f"{name}:")
        if isinstance(findings, str):
            click.echo(f"  cannot be had: {findings}")
            continue
        for finding in findings:
            mark = "ok  " if finding["holds"] else "FAIL"
            click.echo(f"  {mark} {finding['name']}: {finding['seen']}")


@cli.command()
@_sandbox
@_wall
@_json
def demo(sandbox: str, as_json: bool, **settings: Any) -> int:
    """Grade the samples that come with isograd."""
    from importlib import resources

    from isograd.batch import Batch, run_batch
    from isograd.contract import Limits
    from isograd.formats import load_samples, load_tasks

    settings["allow_code_exec"] = True  # the samples are ours
    make = _only_maker(sandbox, settings)
    place = resources.files("isograd.demo")
    with (
        resources.as_file(place / "tasks.jsonl") as tasks_file,
        resources.as_file(place / "samples.jsonl") as samples_file,
    ):
        tasks = load_tasks(tasks_file)
        batch = Batch(tasks, load_samples(samples_file, tasks), Limits(timeout_s=1.0))
        with _progress(len(batch.samples)) as advance:
            summary = run_batch(batch, make, lanes=2, on_result=lambda result: advance())
    return _report(summary, [1, 5], None, as_json)


@cli.command()
@click.option("--sandbox", "sandboxes", multiple=True, metavar="WALL", help="Our own walls.")
@click.option(
    "--grader",
    "graders",
    multiple=True,
    metavar="CMD",
    help="A grader of yours: CMD CANDIDATE.py TESTS.json, exit status 0 for a pass.",
)
@_wall
@_json
def redteam(
    sandboxes: Sequence[str], graders: Sequence[str], as_json: bool, **settings: Any
) -> int:
    """Run programs that want to pass without being right, and count who lets them.

    A grader's command is run here as it is: give one that brings a wall of its own.
    """
    import shlex

    from isograd.redteam import run_against_command, run_attacks, table
    from isograd.sandbox.subprocess import require_opt_in

    if graders:
        require_opt_in(settings["allow_code_exec"])
    outcomes: dict[str, Any] = {}
    for name in sandboxes or (() if graders else ("subprocess",)):
        make = _maker(name, settings)
        for grading in ("split", "shared"):
            outcomes[f"{name}, {grading}"] = run_attacks(make, grading=grading)
    for command in graders:
        outcomes[command] = run_against_command(shlex.split(command))
    rows = table(outcomes)
    if as_json:
        click.echo(json.dumps([dict(zip(rows[0], row, strict=True)) for row in rows[1:]]))
        return _DONE
    from rich.console import Console
    from rich.table import Table

    shown = Table(*rows[0])
    for row in rows[1:]:
        shown.add_row(*row)
    Console().print(shown)
    return _DONE


def _only_maker(sandbox: str, settings: dict[str, Any]) -> Callable[[], Sandbox]:
    """As ``_maker``, where this is the only wall: options for another kind of wall are refused."""
    given = [f"--{name}" for name in ("image", "runtime") if settings[name] is not None]
    if given and not sandbox.startswith("docker"):
        raise InputError(
            f"{' and '.join(given)} says nothing about {sandbox}: add --sandbox docker"
        )
    return _maker(sandbox, settings)


def _maker(sandbox: str, settings: dict[str, Any]) -> Callable[[], Sandbox]:
    from isograd.sandbox.choose import sandbox_maker

    names = ("allow_code_exec", "image", "runtime", "packages", "preload", "spawn", "recycle")
    return sandbox_maker(sandbox, **{name: settings[name] for name in names})


def _limits_of(settings: dict[str, Any]) -> Limits:
    from pydantic import ValidationError

    from isograd.contract import Limits

    try:
        return Limits(
            timeout_s=settings["timeout"],
            timeout_ceiling_s=settings["timeout_ceiling"],
            memory_mb=settings["memory_mb"],
        )
    except ValidationError as error:
        problem = error.errors()[0]
        option = str(problem["loc"][0]).removesuffix("_s").replace("_", "-")
        raise InputError(
            f"--{option} {problem['input']}: {problem['msg'].lower()}, in seconds"
        ) from None


def _read_batch(settings: dict[str, Any]) -> Any:
    from isograd.batch import Batch
    from isograd.formats import load_samples, load_tasks

    tasks = load_tasks(
        settings["tasks"], settings["format_"], allow_bad=settings["allow_bad_tasks"]
    )
    for error in tasks.rejected:
        click.echo(f"isograd: left out: {error}", err=True)
    return Batch(
        tasks,
        load_samples(settings["samples"], tasks),
        _limits_of(settings),
        settings["extraction"],
        tuple(_unescaped(stop) for stop in settings["stops"]),
        settings["grading"],
    )


def _unescaped(stop: str) -> str:
    r"""A stop string with ``\n``, ``\r``, ``\t`` and ``\\`` as a shell passes them on."""
    known = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\"}
    return re.sub(r"\\([nrt\\])", lambda found: known[found[1]], stop)


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    """A progress bar on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

    with Progress(
        *Progress.get_default_columns()[:2],
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task("grading", total=total)
        yield lambda: bar.advance(task)


if __name__ == "__main__":
    main()
