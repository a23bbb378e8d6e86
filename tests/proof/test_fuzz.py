"""Programs that nobody wrote, as candidates and as checks: one verdict on every wall.

ISOGRAD_FUZZ_JOBS says how many programs; 2,000 without it.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from conftest import MAKERS
from isograd import Assertions, Job, Limits, Program, Sandbox, SubprocessSandbox
from isograd.contract import Checks
from isograd.parity import Parity, compare
from isograd.sandbox.base import control_job

JOBS = int(os.environ.get("ISOGRAD_FUZZ_JOBS", "2000"))
SMALL = Limits(
    timeout_s=2, memory_mb=128, processes=16, scratch_mb=4, scratch_files=100, output_bytes=20_000
)
KNOWN = "def f(x=1, *rest): return [x, *rest]\n"

TOKENS = """
    def class return yield lambda if else elif for while try except finally with as import from
    assert raise pass break continue global nonlocal del async await match case and or not in is
    None True False f g x y self print len range list dict set str int float sorted sum map zip
    open exec eval compile type object super getattr setattr isinstance iter next
    math itertools collections functools json re
    ( ) [ ] { } : , . ; = == != < > <= >= + - * ** / // % @ & | ^ ~ -> := += ... \\
    0 1 2 -1 10 3.5 1e9 'a' "b" '' b'c' f'{x}' r'\\d' '''s''' # 0x1f 1j
""".split()

NAMES = ("f", "g", "x", "y", "items", "n")


class Fuzz:
    """Makes programs of several kinds, the same ones for the same seed."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self._kinds = (self.bytes, self.text, self.tokens, self.program, self.program, self.spoilt)

    def any(self) -> str:
        return self._dice.choice(self._kinds)()

    def bytes(self) -> str:
        """Bytes as they would be decoded."""
        data = self._dice.randbytes(self._dice.randrange(1, 200))
        return data.decode(self._dice.choice(["latin-1", "utf-8"]), "surrogateescape")

    def text(self) -> str:
        """Characters from all over Unicode."""
        return "".join(
            chr(self._dice.choice([self._dice.randrange(128), self._dice.randrange(0x110000)]))
            for _ in range(self._dice.randrange(1, 60))
        )

    def tokens(self) -> str:
        """Words of the language in any order, with line breaks and indentation."""
        words: list[str] = []
        for _ in range(self._dice.randrange(1, 40)):
            words.append(self._dice.choice(TOKENS))
            if self._dice.random() < 0.2:
                words.append("\n" + "    " * self._dice.randrange(3))
        return " ".join(words)

    def program(self) -> str:
        """A program that compiles, whatever it does; half of them only do it when called."""
        if self._dice.random() < 0.5:
            return f"def g(f=f, g=3, x=4, y='y', items=(5, 6), n=7):\n{self._block(0)}\n"
        return "\n".join(self._statement(0) for _ in range(self._dice.randrange(1, 6))) + "\n"

    def spoilt(self) -> str:
        """A program with some characters exchanged, dropped or doubled."""
        text = list(self.program())
        for _ in range(self._dice.randrange(1, 6)):
            at = self._dice.randrange(len(text))
            text[at] = self._dice.choice(
                ["", text[at] * 2, chr(self._dice.randrange(32, 127)), "\t"]
            )
        return "".join(text) or "x"

    def _name(self) -> str:
        return self._dice.choice(NAMES)

    def _block(self, depth: int) -> str:
        lines = [self._statement(depth + 1) for _ in range(self._dice.randrange(1, 3))]
        return "\n".join("    " + line for text in lines for line in text.split("\n"))

    def _statement(self, depth: int) -> str:
        value, name = self._expression, self._name
        kinds: list[Callable[[], str]] = [
            lambda: f"{name()} = {value()}",
            lambda: f"{name()}, {name()} = {value()}, {value()}",
            lambda: f"print({value()})",
            value,
            lambda: f"assert {value()}",
            lambda: (
                f"raise {self._dice.choice(['ValueError', 'KeyError', 'SystemExit'])}({value()})"
            ),
            lambda: (
                f"import {self._dice.choice(['math', 'json', 'socket', 'numpy', 'os', 'ctypes'])}"
            ),
            lambda: f"del {name()}",
        ]
        if depth < 3:
            block = self._block
            kinds += [
                lambda: f"def {name()}({name()}=1, *rest):\n{block(depth)}\n    return {value()}",
                lambda: f"class {name()}:\n{block(depth)}",
                lambda: f"if {value()}:\n{block(depth)}\nelse:\n{block(depth)}",
                lambda: f"for {name()} in range({self._dice.randrange(30)}):\n{block(depth)}",
                lambda: f"try:\n{block(depth)}\nexcept Exception as x:\n{block(depth)}",
                lambda: f"try:\n{block(depth)}\nfinally:\n{block(depth)}",
            ]
            if self._dice.random() < 0.03:
                kinds = [lambda: f"while {value()}:\n{block(depth)}"]
        return self._dice.choice(kinds)()

    def _expression(self, depth: int = 0) -> str:
        leaves = [
            self._name(),
            self._dice.choice(
                ["None", "True", "[]", "{}", "()", "''", "-1", "1.5", "10**20", "1j"]
            ),
            repr(self._dice.choice(["é", "\ud800", "\0", "abc", b"\xff", 2**70, float("inf")])),
        ]
        if depth > 3 or self._dice.random() < 0.3:
            return self._dice.choice(leaves)
        a, b = self._expression(depth + 1), self._expression(depth + 1)
        name = self._name()
        return self._dice.choice(
            [
                f"({a} {self._dice.choice('+ - * / // % & | ^ < == != in is and or'.split())} {b})",
                f"[{a}, {b}]",
                f"({a}, {b})",
                f"{{{a}: {b}}}",
                f"{{{a}, {b}}}",
                f"{name}({a})",
                f"{name}({a}, *{b})",
                f"{name}.{self._dice.choice(['append', '__class__', '__dict__', 'x', 'real'])}",
                f"{name}[{a}]",
                f"(lambda {name}: {a})({b})",
                f"[{a} for {name} in {b}]",
                f"sum({a} for {name} in range(9))",
                f"({a} if {b} else {name})",
                f"{self._dice.choice(['str', 'repr', 'len', 'sorted', 'type', 'iter', 'id', 'hash'])}({a})",
                f"isinstance({a}, {self._dice.choice(['int', 'str', 'list', name])})",
                f"f'{{{name}!r}}'",
            ]
        )

    def checks(self) -> Checks:
        """Checks that were no more written by anybody than the program was."""
        if self._dice.random() < 0.3:
            body = "\n".join("    " + line for line in self.program().split("\n"))
            return Program(f"def check(candidate):\n    candidate(1)\n{body}\n", "f")
        checks = [self._dice.choice([self._expression, self.any])() for _ in range(3)]
        return Assertions(
            ["f(1) == [1]", *checks], setup=self.any() if self._dice.random() < 0.2 else ""
        )


def fuzzed(count: int) -> Iterator[Job]:
    """A third each: strange candidates, strange checks, and both."""
    fuzz = Fuzz(11)
    for sample in range(count):
        kind = ("candidate", "checks", "both")[sample % 3]
        yield Job(
            code=KNOWN if kind == "checks" else KNOWN + fuzz.any(),
            checks=Assertions(["f(1) == [1]", "g(2)"]) if kind == "candidate" else fuzz.checks(),
            entry_point=("f", None)[sample % 2],
            limits=SMALL,
            task_id=kind,
            sample=sample,
        )


def walls() -> list[str]:
    return [name for name in ("subprocess", "docker", "bubblewrap") if name in MAKERS]


def test_every_wall_says_the_same_of_fuzz(
    make_sandbox: Callable[[str], Callable[[], Sandbox]],
) -> None:
    """Exit code, reason and checks are the same; no divergence, no fault, no exception here."""
    sides = {name: make_sandbox(name) for name in walls()}
    again = {name: make_sandbox(f"{name}-fresh") for name in sides if f"{name}-fresh" in MAKERS}
    outcome = compare(fuzzed(JOBS), sides, again={**sides, **again}, by="verdict", accepted=())
    tell(outcome)
    assert outcome.jobs == JOBS
    assert outcome.count("divergent") == 0
    assert outcome.faults == []
    assert outcome.count("nondeterministic") < 0.01 * JOBS + 2


def tell(outcome: Parity) -> None:
    print("\n", {name: n for name, n in outcome.as_json().items() if isinstance(n, int)})
    for difference in outcome.differences:
        seen = {
            side: [(e.exit_code.value, e.reason, e.per_assertion, e.detail[:80]) for e in envelopes]
            for side, envelopes in difference.envelopes.items()
        }
        print(difference.kind, difference.task_id, difference.sample, seen)
    for fault in outcome.faults:
        print("fault", fault)


@pytest.mark.parametrize("grading", ["split", "shared"])
def test_a_lane_outlives_all_fuzz(grading: str) -> None:
    """One lane runs everything; it is the same lane at the end, and it still works."""
    codes: Counter[str] = Counter()
    lanes = set()
    with SubprocessSandbox(allow_code_exec=True) as sandbox:
        for job in fuzzed(JOBS // 2):
            result = sandbox.run_measured(job.model_copy(update={"grading": grading}))
            assert result.envelope is not None and result.measurement is not None
            assert result.measurement.retries == 0, job
            codes[result.envelope.exit_code.value] += 1
            lanes.add(sandbox._lane)
        assert sandbox.run(control_job()).exit_code == "pass"
    print("\n", grading, dict(codes))
    assert len(lanes) == 1
    assert {"pass", "assertion_fail", "syntax_error", "error"} <= set(codes)
