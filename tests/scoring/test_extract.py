"""What is taken from a generation, and what is left alone."""

from __future__ import annotations

import pytest

from isograd.scoring.extract import POLICIES, extract, extract_code, names_called

F = "def f(x):\n    return x + 1\n"
OLD = "def f(x):\n    return x\n"
G = "def g(x):\n    return f(x) * 2\n"
BODY = "    return x + 1\n"


def py(code: str, info: str = "python") -> str:
    return f"```{info}\n{code}```\n"


CASES = {
    "four backticks around three": (
        "````python\ndef block(code):\n    return '''```\n''' + code + '''\n```'''\n````\n",
        ["block"],
        "def block(code):\n    return '''```\n''' + code + '''\n```'''\n",
    ),
    "one line": (
        "Short answer: ```python def sq(n): return n * n```",
        ["sq"],
        "def sq(n): return n * n",
    ),
    "think tags in the code": (
        '```python\ndef strip_think(s):\n    a, b = "<think>", "</think>"\n'
        "    i, j = s.find(a), s.find(b)\n    if i < 0 or j < 0:\n        return s\n"
        "    return s[:i] + s[j + len(b):]\n```\n",
        ["strip_think"],
        'def strip_think(s):\n    a, b = "<think>", "</think>"\n'
        "    i, j = s.find(a), s.find(b)\n    if i < 0 or j < 0:\n        return s\n"
        "    return s[:i] + s[j + len(b):]\n",
    ),
    "stray closing tag after the answer": (
        "The function:\n\n```python\ndef odd(n):\n    return n % 2 == 1\n```\n</think>\n"
        "Anything else?\n",
        ["odd"],
        "def odd(n):\n    return n % 2 == 1\n",
    ),
    "shell first": (
        "Install nothing, but for the record:\n\n```bash\npip install --upgrade pip && python -V\n"
        "```\n\n```python\ndef pad(s, n):\n    return s.rjust(n, '0')\n```\n",
        ["pad"],
        "def pad(s, n):\n    return s.rjust(n, '0')\n",
    ),
    "helper in an earlier block": (
        "A helper first:\n\n```python\ndef _norm(s):\n"
        "    return ''.join(c for c in s.lower() if c.isalnum())\n```\n\n"
        "Then the function itself:\n\n```python\ndef is_pal(s):\n    t = _norm(s)\n"
        "    return t == t[::-1]\n```\n",
        ["is_pal"],
        "def _norm(s):\n    return ''.join(c for c in s.lower() if c.isalnum())\n\n"
        "def is_pal(s):\n    t = _norm(s)\n    return t == t[::-1]\n",
    ),
    "doctest prompts": (
        "```python\n>>> def dbl(n):\n...     return n * 2\n...\n>>> dbl(4)\n8\n```\n",
        ["dbl"],
        "def dbl(n):\n    return n * 2\n\ndbl(4)\n",
    ),
    "nested helper and demo": (
        "```python\ndef steps(n):\n    def tri(i):\n        return i * (i + 1) // 2\n"
        "    return [tri(i) for i in range(n)]\n\n# try it\nprint(steps(5))\n```\n",
        ["steps"],
        "def steps(n):\n    def tri(i):\n        return i * (i + 1) // 2\n"
        "    return [tri(i) for i in range(n)]\n\n# try it\nprint(steps(5))\n",
    ),
    "unicode line separator and form feed": (
        "```python\n\f\ndef sep():\n    return 'a\u2028b'\n```\n",
        ["sep"],
        "\f\ndef sep():\n    return 'a\u2028b'\n",
    ),
    "byte-order mark": ("\ufeffdef one():\n    return 1\n", ["one"], "def one():\n    return 1\n"),
}


@pytest.mark.parametrize(("text", "names", "code"), CASES.values(), ids=CASES)
def test_reported_trouble(text: str, names: list[str], code: str) -> None:
    """Each kind of generation that extractors were reported to spoil gives its program."""
    assert extract(text, "auto", names) == code


FENCES = {
    "tildes": f"~~~python\n{F}~~~\n",
    "tildes around backticks": f"~~~\n{F}~~~\n```\nf(1)\n```\n",
    "longer closing fence": f"```python\n{F}`````\n",
    "no closing newline": f"```python\n{F}```",
    "trailing blanks": f"``` python  \n{F}```  \n",
    "three spaces": f"   ```python\n{F}   ```\n",
    "capital info": py(F, "Python"),
    "python3": py(F, "python3"),
    "py": py(F, "py"),
    "attributes": py(F, "{.python .numberLines}"),
    "title": py(F, 'python title="f.py"'),
    "file name": py(F, "python:src/f.py"),
    "unknown language": py(F, "solution"),
    "no language": py(F, ""),
    "list item": "1. Do this:\n\n    ```python\n    def f(x):\n        return x + 1\n    ```\n",
    "on the list marker": "- ```python\n  def f(x):\n      return x + 1\n  ```\n",
    "tab in a list": "1. This:\n\t```python\n\tdef f(x):\n\t    return x + 1\n\t```\n",
    "code indented more than its fence": "```python\n    def f(x):\n        return x + 1\n```\n",
    "quotation": "> ```python\n> def f(x):\n>     return x + 1\n> ```\nDone.\n",
    "quotation without an end": "> ```python\n> def f(x):\n>     return x + 1\n\nDone.\n",
    "behind text": f"The code: ```python\n{F}```\n",
    "bare behind text": f"The code: ```\n{F}```\n",
    "code on the fence's line": "```python def f(x):\n    return x + 1\n```\n",
    "code for an info string": "```def f(x):\n    return x + 1\n```\n",
    "closing fence too deep": f"```python\n{F}     ```\nIt adds one.\n",
    "closing fence before text": f"```python\n{F}``` It adds one.\n",
    "boxed": f"$\\boxed{{```python\n{F}```}}$\n",
    "bold": f"**```python**\n{F}```\n",
    "opened twice": f"```python\n```python\n{F}```\n```\n",
    "language on a line of its own": f"```\npython\n{F}```\n",
    "end token": f"{py(F)}<|im_end|>\n",
    "end token in an open block": f"```python\n{F}<|im_end|><|endoftext|>",
    "never closed": f"```python\n{F}",
    "next fence opens unclosed": f"```python\n{F}```python\nf(1)\n```\n",
    "in a markdown block": f"```markdown\nThe answer:\n```python\n{F}```\n```\n",
    "in a longer markdown block": f"````markdown\nHi\n```python\n{F}```\nBye\n````\n",
    "byte-order mark inside": py("\ufeff" + F),
}


@pytest.mark.parametrize("text", FENCES.values(), ids=FENCES)
def test_fences(text: str) -> None:
    """However a block is fenced, its code comes out, without the fence's indentation."""
    assert extract(text, "auto", ["f"]) == F


def test_crlf_is_kept() -> None:
    """A block of a text with CRLF line ends is found, and its line ends stay."""
    text = py(F).replace("\n", "\r\n")
    assert extract(text, "auto", ["f"]) == extract_code(text) == F.replace("\n", "\r\n")
    assert extract(py(F).replace("\n", "\r"), "auto", ["f"]) == F.replace("\n", "\r")


FENCES_IN_CODE = {
    "indented docstring": f'def f(x):\n    """Add.\n\n    ```\n    f(1)\n    ```\n    """\n{BODY}',
    "docstring at the margin": f'def f(x):\n    """Add.\n```\nf(1)\n```\n"""\n{BODY}',
    "string": "def f(x):\n    return '''```\n''' + x\n",
    "glued in a string": "def f(x):\n    return '''\n```''' + x\n",
}


@pytest.mark.parametrize("code", FENCES_IN_CODE.values(), ids=FENCES_IN_CODE)
def test_fences_in_strings_are_code(code: str) -> None:
    """A fence that stands in a string of the program does not end its block, nor begin one."""
    assert extract(py(code), "auto", ["f"]) == code
    assert extract(code, "auto", ["f"]) == code
    assert extract(py(code) + "\nLike so:\n" + py("f(1)\n"), "auto", ["f"]) == code


@pytest.mark.parametrize(
    "code",
    [
        BODY,
        "    # add\n    y = x\n\n    return y + 1\n",
        "\treturn x\n",
        '    """```python\n    f(1)\n    ```"""\n' + BODY,
        "    if x:\n        return 1\n    return 2\n\n\ndef other():\n    pass\n",
        '    return "<think>" + x + "</think>"\n',
        "\n\n" + F + "\n\nprint(f(2))\n",
        "x = '\u2028'\r\ny = 1\f\r\n",
        "def f(x:\n    return\n",
        "    return (x\n",
        "",
        "   ",
        "I do not know.",
    ],
)
def test_text_without_fences_is_left_alone(code: str) -> None:
    """Raw code, broken or not, and text without any code come back byte for byte."""
    assert extract(code, "auto", ["f"]) == code


CHOICES = {
    "last alternative": (py(OLD) + "Better:\n" + py(F), F),
    "usage last": (py(F) + "Usage:\n" + py("print(f(1))\n"), F),
    "tests last": (py(F) + py("import pytest\n\ndef test_f():\n    assert f(1) == 2\n"), F),
    "tests import the answer": (py(F) + py("from solution import f\n\nassert f(1) == 2\n"), F),
    "output last": (py(F) + py("2\n", "") + py('{"f": 1}\n', "json"), F),
    "other language last": (py(F) + py("function f(x) { return x + 1 }\n", "javascript"), F),
    "mislabelled": (py("print(f(1))\n") + py(F, "text"), F),
    "stub first": (py("def f(x): ...\n") + py(F), F),
    "stub last": (py(F) + py('def f(x):\n    """Add."""\n    raise NotImplementedError\n'), F),
    "only a stub": (py("x = 1\n") + py("def f(x): ...\n"), "def f(x): ...\n"),
    "assigned": (py("f = lambda x: x + 1\n") + py("print(f(1))\n"), "f = lambda x: x + 1\n"),
    "imported": (py("from m import g as f\n") + py("f(1)\n"), "from m import g as f\n"),
    "defined in a branch": (py("try:\n    import q\nexcept ImportError:\n    def f(x): return 1\n")
                            + py("f(1)\n"),
                            "try:\n    import q\nexcept ImportError:\n    def f(x): return 1\n"),
    "only called": (py("def g():\n    f = 1\n    return f\n") + py(F), F),
    "broken last answer": (py(OLD) + "Fixed:\n" + py("def f(x:\n    return x\n"),
                           "def f(x:\n    return x\n"),
    "broken and untagged": (py(F) + py("def f(x)\n  add one to x\n", ""), F),
    "cut off": (py(F) + "Or:\n```python\ndef f(x):\n    return (x +", F),
    "cut off and alone": ("```python\ndef f(x):\n    return (x +", "def f(x):\n    return (x +"),
    "no block defines it": (py("ls\n", "sh") + py("2\n", "") + py(BODY) + py("f(1)\n"), "2\n"),
    "untagged prose first": (py("add one to x\n", "") + py(BODY), BODY),
    "only another language": (py("ls\n", "sh") + py("[]\n", "json"), "ls\n"),
    "raw code, then usage": (F + "\nUsage:\n\n" + py("print(f(1))\n"), F + "\n"),
    "body, then usage": (BODY + "\nUsage:\n\n" + py("print(f(1))\n"), BODY + "\n"),
    "fence of the prompt closes": (BODY + "```\n\nThis adds one to x.\n", BODY),
    "fence of the prompt closes, more": (F + "```\nUsage:\n" + py("print(f(1))\n"), F),
    "a fence glued to code closes nothing": ("```python\n" + F + "f(1)```", F + "f(1)```"),
    "inline mention": ("Wrap it in ```python fences``` always.\n" + py(F), F),
}  # fmt: skip


@pytest.mark.parametrize(("text", "code"), CHOICES.values(), ids=CHOICES)
def test_the_answer_among_blocks(text: str, code: str) -> None:
    """The last block that really defines what the checks call is the answer."""
    assert extract(text, "auto", ["f"]) == code


def test_without_names_the_first_python_block_counts() -> None:
    """Where nothing is known about the checks the contract's rule holds, shell passed over."""
    assert extract(py("ls\n", "sh") + py(OLD) + py(F), "auto") == OLD


JOINED = {
    "chain": ([("A = 1\n"), ("def h():\n    return A\n"), ("def f(x):\n    return h()\n")], "ABC"),
    "import": (["import math\n", "print(1)\n", "def f(x):\n    return math.pi\n"], "AC"),
    "star import": (["from math import *\n", "def f(x):\n    return pi\n"], "AB"),
    "nearest": (["def h(): return 1\n", "def h(): return 2\n", "def f(x): return h()\n"], "BC"),
    "helper after": (["def f(x):\n    return h(x)\n", "def h(x):\n    return x\n"], "AB"),
    "a later script is no helper": (["def f(x):\n    return h\n", "h = 1\nprint(f(h))\n"], "A"),
    "alternatives": (["import os\ndef f(x): return os\n", "def f(x): return 2\n"], "B"),
    "two wanted names": ([F, "class Box:\n    pass\n", "print(f(1))\n"], "AB"),
    "locals and builtins": (
        ["x = y = len = 1\n", "def f(x):\n    y = len(x)\n    return y\n"],
        "B",
    ),
}


@pytest.mark.parametrize(("blocks", "which"), JOINED.values(), ids=JOINED)
def test_joining(blocks: list[str], which: str) -> None:
    """The answer brings the blocks that it needs, in their order, and no other."""
    code = extract("and\n".join(map(py, blocks)), "auto", ["f", "Box"])
    assert code == "\n".join(blocks["ABC".index(letter)] for letter in which)


def test_future_imports_stay_first() -> None:
    """A future import of a later block still compiles once an earlier block is joined."""
    later = "from __future__ import annotations\n\ndef f(x: int) -> int:\n    return h(x)\n"
    code = extract(py("def h(x):\n    return x\n") + py(later), "auto", ["f"])
    assert code is not None
    assert code.startswith("from __future__ import annotations\n")
    compile(code, "joined", "exec")


SESSIONS = {
    "output": ">>> def f(x):\n...     return x + 1\n>>> f(1)\n2\n",
    "indented": "    >>> def f(x):\n    ...     return x + 1\n    >>> f(1)\n    2\n",
    "traceback": (
        ">>> def f(x):\n...     return x + 1\n>>> f(1)\n>>> f('')\n"
        "Traceback (most recent call last):\n  ...\nTypeError: no\n"
    ),
    "ipython": "In [1]: def f(x):\n   ...:     return x + 1\nIn [2]: f(1)\nOut[2]: 2\n",
}


@pytest.mark.parametrize("session", SESSIONS.values(), ids=SESSIONS)
@pytest.mark.parametrize("form", ["{}", "```python\n{}```\n", "```\n{}```\n", "```pycon\n{}```\n"])
def test_sessions(session: str, form: str) -> None:
    """A pasted session gives its statements, without output and what failed in it."""
    assert extract(form.format(session), "auto", ["f"]) == F + "f(1)\n"


def test_half_a_session_is_left_alone() -> None:
    """Where a code line has no prompt nothing is stripped, so nothing is lost unseen."""
    code = ">>> x = 1\ndef f(x):\n    return x\n"
    assert extract(py(code), "auto", ["f"]) == code


def test_prompts_in_a_docstring_stay() -> None:
    """Doctest lines inside a docstring are part of the program."""
    code = f'def f(x):\n    """\n    >>> f(1)\n    2\n    """\n{BODY}'
    assert extract(py(code), "auto", ["f"]) == extract(code, "auto", ["f"]) == code


REASONING = {
    "before a block": f"<think>\nhm\n</think>\n\n{py(F)}",
    "with a draft": f"<think>\nTry:\n{py(OLD)}no.\n</think>\n{py(F)}",
    "with an open fence": f"<think>\n```python\ndef f(x):\n    retu\n</think>\n{py(F)}",
    "with quoted tags": f'<think>\nstrip "<think>" and "</think>", `</think>`\n</think>\n{py(F)}',
    "with a draft about tags": (
        "<think>\n```python\ndef f(s):\n    return s.split('</think>')\n```\n</think>\n" + py(F)
    ),
    "opened by the prompt": f"Try this:\n{py(OLD)}no, better.\n</think>\n\n{py(F)}",
    "opened by the prompt, open fence": f"So:\n```python\ndef f(x):\n</think>\n{py(F)}",
    "nested": f"<think>\na\n<think>\n{py(OLD)}</think>\nb\n</think>\n{py(F)}",
    "twice": f"<think>a</think>\nHm.\n<think>\n{py(OLD)}</think>\n{py(F)}",
    "after the answer": f"{py(F)}\n<think>\nor {py(OLD)}",
    "closed after the answer": f"{py(F)}</think>\nUsage:\n{py('print(f(1))' + chr(10))}",
    "another spelling": f"<Thinking>\n{py(OLD)}</Thinking>\n{py(F)}",
    "mentioned in code style": f"It strips `<think>` and all.\n{py(F)}",
    "mentioned": f"It strips a <think> tag.\n{py(F)}",
}


@pytest.mark.parametrize("text", REASONING.values(), ids=REASONING)
def test_reasoning_is_dropped(text: str) -> None:
    """What a model thought is no answer, and a tag in an answer is no thought."""
    assert extract(text, "auto", ["f"]) == F


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("<think>\nhm\n</think>\n" + F, "\n" + F),
        ("<think>hm</think>" + BODY, BODY),
        ("<think>hm</think> " + F, F),
        ("hm\n</think>\n" + BODY, "\n" + BODY),
    ],
)
def test_raw_code_after_reasoning(text: str, code: str) -> None:
    """Raw code after reasoning is kept as it is, indentation included."""
    assert extract(text, "auto", ["f"]) == code


@pytest.mark.parametrize(
    "text", ["<think>\nhm", f"<think>\n{py(F)}and", f"Well.\n\n  <think>\n{py(F)}"]
)
def test_unfinished_reasoning_is_no_code(text: str) -> None:
    """Reasoning that never ends gives no code, whatever it drafts."""
    assert extract(text, "auto", ["f"]) is None


PROSE = {
    "before": f"Here is the function:\n\n{F}",
    "after": f"{F}\nThis function adds one, and doesn't do more.\n",
    "around": f"Sure!\n\n{F}\n\n**Explanation:**\n- It adds one to `x`.\n",
    "tags": f"<answer>\n{F}</answer>\n",
    "label": f"python\n{F}",
    "end token": f"{F}<|endoftext|>",
    "chinese": f"这是代码：\n\n{F}\n它返回下一个数。\n",  # noqa: RUF001
}


@pytest.mark.parametrize("text", PROSE.values(), ids=PROSE)
def test_prose_around_raw_code_is_cut(text: str) -> None:
    """Unfenced code comes out of the prose around it."""
    code = extract(text, "auto", ["f"])
    assert code is not None
    assert code.strip() == F.strip()


def test_prose_after_a_body_is_cut() -> None:
    """A function's body with an explanation after it keeps its indentation."""
    assert extract(f"{BODY}\nThis adds one to x.\n", "auto", ["f"]) == f"{BODY}\n"


@pytest.mark.parametrize(
    "text",
    [
        F + "\nprint f(1)\n",
        F + "\ndef g(:\n    pass\n",
        F + "\nx = = 1\n",
        F + "\nelse:\n    pass\n",
        "import os\n)\n" + F,
        "Use this:\n\ndef g(x):\n    return x\n",
    ],
)
def test_broken_code_is_not_mended(text: str) -> None:
    """Code that is broken itself is not cut down to a part that would pass."""
    assert extract(text, "auto", ["f"]) == text


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        (F, F, F),
        ("", "", ""),
        ("\ufeff" + F, "\ufeff" + F, "\ufeff" + F),
        ("<think>\n" + F, "<think>\n" + F, "<think>\n" + F),
        (py(F), F, F),
        (py("ls\n", "sh") + py(F), "ls\n", F),
        (py(F) + "```python\nf(", F, F),
        ("```python\n" + F, None, None),
        ("x\n~~~\n" + F, None, None),
        (py(">>> f(1)\n2\n"), ">>> f(1)\n2\n", ">>> f(1)\n2\n"),
        ("```\n```\n", "", ""),
        ("```python\nx = 1```", None, None),
    ],
)
def test_first_and_last(text: str, first: str | None, last: str | None) -> None:
    """`first` is the contract's rule, and `last` the same from the other end."""
    assert extract_code(text) == extract(text, "first", ["f"]) == first
    assert extract(text, "last", ["f"]) == last
    assert extract(text, "none", ["f"]) == text


@pytest.mark.parametrize("policy", ["", "AUTO", "all"])
def test_unknown_policy(policy: str) -> None:
    """A policy that does not exist is an error that names those that do."""
    with pytest.raises(ValueError, match="auto, first, last, none"):
        extract(F, policy)


HOSTILE = {
    "100,000 backticks": "`" * 100_000,
    "100,000 backticks and one": "`" * 100_000 + " x `",
    "50,000 runs": "```x" * 50_000,
    "50,000 fences": "```\n" * 50_000,
    "25,000 blocks": "```python\ndef f(): pass\n```\n" * 25_000,
    "25,000 open blocks": "```python\nx = 1\n" * 25_000,
    "one line of 1 MB": "a" * 1_000_000,
    "one line of blanks": " " * 1_000_000 + "```",
    "deep parentheses": "(" * 100_000,
    "deep parentheses in a block": py("(" * 100_000 + "\n"),
    "deep operators": "-" * 100_000 + "1",
    "long chain": "x" + ".a" * 100_000,
    "tags": "<think>" * 100_000,
    "tags on lines": "<think>\n</think>\n" * 25_000,
    "closing tags": "</think>" * 50_000 + "\n" + py(F),
    "quoted tags": "<think>\n" + '"</think>"\n' * 50_000,
    "prose": "import os\n" + "This is prose.\n" * 20_000,
    "open strings": '```python\n"""\n```\n' * 10_000,
    "glued fences": "```python\n" + "x = (1```\n" * 10_000,
    "end tokens": "<|a|>" * 50_000,
    "null byte": py("x = '\0'\n"),
    "lone surrogate": py("x = '\ud800'\n"),
    "carriage returns": "\r" * 100_000,
    "bad escape": py("x = '\\d'\nassert (x, 1)\n1 is 1\n"),
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_no_text_raises_or_warns(text: str, policy: str) -> None:
    """Whatever a model writes, extraction answers with a part of it or with None."""
    code = extract(text, policy, ["f", "x"])
    assert code is None or len(code) <= len(text) + 1
    assert isinstance(names_called([text]), tuple)


def test_large_blocks_are_found_without_parsing() -> None:
    """A program too large to parse in passing is still chosen by the name that it defines."""
    large = "x = 1\n" * 100_000 + F
    assert extract(py(OLD) + py(large) + py("f(1)\n"), "auto", ["f"]) == large


@pytest.mark.parametrize(
    ("sources", "names"),
    [
        (["f(1) == 2"], ("f",)),
        (["assert f(1) == g(2), msg", "h"], ("f", "g", "h", "msg")),
        (["  f(1)\n"], ("f",)),
        (["len(f([])) == max(0, 0)"], ("f",)),
        (["max(1, 2)"], ()),
        (["all(f(x) for x in range(3))"], ("f",)),
        (["(lambda y: f(y))(1)"], ("f",)),
        (["x = f(1)", "x == 2"], ("f",)),
        (["import math", "math.isclose(f(1), 2)"], ("f",)),
        (["def check(candidate):\n    assert candidate(1) == helper(2)\n"], ("helper",)),
        (["class T:\n    def test(self):\n        self.x = Stack().push(1)\n"], ("Stack",)),
        (["f(", "", "# f", "g(1)"], ("g",)),
        (["obj.f(k=1)"], ("obj",)),
        ([], ()),
    ],
)
def test_names_called(sources: list[str], names: tuple[str, ...]) -> None:
    """The names that checks use are those that neither they nor Python define."""
    assert names_called(sources) == names


def test_names_called_warns_of_nothing() -> None:
    """A check with a doubtful literal is read without a warning."""
    assert names_called(["f('\\d') is 1", "assert (g, 1)"]) == ("f", "g")
