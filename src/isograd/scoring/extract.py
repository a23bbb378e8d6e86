"""Find the program in what a model wrote.

``extract_code`` is the contract's rule. ``extract`` adds named policies, of which ``auto`` is
meant for real chat generations. Nothing here runs code: text is read as lines, and Python is
only parsed.

What ``auto`` does, in this order:

1. A byte-order mark in front is dropped. Text that is Python as it stands, alone or as the
   indented body of a function, is the answer, byte for byte: fences and tags in it can only
   stand in strings and comments. Special tokens at the end (``<|endoftext|>``) are dropped.
2. Reasoning is dropped: from a ``<think>`` that begins a line to its ``</think>``. A closing
   tag without an opening one (many chat templates write the opening tag into the prompt) drops
   what stands before it if an answer follows, else only itself. Reasoning that never ends
   leaves what stood before it if that holds code, else None. Tags in quotes, in inline code or
   inside a block that parses are text, not tags.
3. Fences are read as CommonMark reads them, with these differences. A fence may be indented
   by any amount, stand in a list item or a quotation, or follow text on its line; the block
   loses the fence's indentation. A block on one line counts if it is code. Code behind the
   info string belongs to the block. A block that does not parse is closed elsewhere if that
   makes it parse: at a fence with text around it, at the next opening fence, or at a later
   fence if this one stands in a triple-quoted string. A first line that only says ``python``
   goes. Doctest and IPython prompts go if every code line has one, with the output and the
   statements that show a traceback. A block of another language that wraps a Python block
   stands for its content.
4. The answer is the last block that defines one of ``names``, the names that the checks use.
   Blocks tagged as another language come last. A block that does not parse counts if it is
   closed and tagged as Python (it is the model's answer, and wrong); else it gives way to one
   that does. A stub (``def f(x): ...``) is no definition if there is another.
5. Blocks that define what the answer leaves undefined, or the rest of ``names``, are joined to
   it in their order: the nearest earlier block of each name, else a later one that consists of
   definitions only.
6. If no block defines a name, code in front of the first fence that does, or that is the body
   of a function, is the answer; so it is at once where the first fence is bare, as it closes
   one that the prompt had opened. Else the contract's rule, where blocks in another language,
   and untagged ones that are not code, give way. An unclosed fence yields its text.
7. Text without a fence is returned whole, unless paragraphs of prose around it are all that
   keeps it from being Python: then they are cut off. Broken code is never cut down to a part
   that works.

Lines end at LF, CRLF and CR only. The work grows linearly with the text: attempts at repair are
counted, and text above ``_MAX_PARSE`` characters is judged by patterns and not parsed.
"""

from __future__ import annotations

import ast
import builtins
import io
import keyword
import re
import symtable
import textwrap
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, chain, islice, pairwise

POLICIES = ("auto", "first", "last", "none")

_MAX_PARSE = 300_000
_MAX_REPAIRS = 16
_MAX_CUTS = 8
_MAX_TAGS = 20
_MAX_LINE_BEFORE = 500
_BOM = "\ufeff"

_BUILTINS = frozenset(dir(builtins)) | {"__file__", "__annotations__"}
_NOT_PARSED = (SyntaxError, ValueError, RecursionError, MemoryError)

_TAG = re.compile(r"<(/?)think(?:ing)?>", re.IGNORECASE)
_FENCE = re.compile(
    r"(?P<quote>(?: {0,3}>[ ]?)*)(?P<indent>[ \t]*+(?:(?:[-*+]|\d{1,9}[.)])[ \t]++)?)"
    r"(?P<run>`{3,}+|~{3,}+)(?P<info>.*+)",
    re.DOTALL,
)
_PYTHON = re.compile(r"(?:i?py|[ig]?python|pycon|python-repl|sage)[\d.]*|.*\.py", re.I)
_OTHER_LANGUAGES = """
    bash sh shell zsh fish console terminal cmd bat batch powershell ps1 text txt plaintext plain
    output stdout stderr stdin input json jsonl json5 yaml yml toml xml html css scss js javascript
    mjs ts typescript jsx tsx java c h cpp c++ cxx cc objective-c objc cs csharp c# f# fsharp go
    golang rust rs ruby rb php perl pl swift kotlin kt scala r julia jl haskell hs ocaml ml elixir
    erlang clojure lisp scheme lua dart sql diff patch markdown md mdx latex tex math mermaid
    dockerfile docker makefile make cmake ini cfg conf csv tsv log logs traceback pytb error
    pseudocode pseudo algorithm graphql proto protobuf dot graphviz http asm nasm wasm matlab
    fortran cobol pascal vb zig nim solidity verilog vhdl assembly shell-session
"""
_OTHER = frozenset(_OTHER_LANGUAGES.split())
_CODE_START = re.compile(
    r"(?:async[ \t]+def|def|class)[ \t]+\w+|import[ \t]+[\w.]+[ \t]*(?:$|,|;|#|as[ \t])"
    r"|from[ \t]+[\w.]+[ \t]+import\b|@\w",
    re.MULTILINE,
)
_DEFINITION = re.compile(
    r"^(?:(?:async[ \t]+def|def|class)[ \t]+(\w+)|(\w+)[ \t]*(?::[^=\r\n]*)?=(?!=))", re.MULTILINE
)
_FUTURE = re.compile(r"^from[ \t]+__future__[ \t]+import[^\r\n]*(?:\r\n|\r|\n|\Z)", re.MULTILINE)
_PROMPT = re.compile(r"[ \t]*(?:(>>>|In \[\d+\]:)|(\.\.\.:?))(?:[ ]|$)")
_DEFINES_LINE = re.compile(r"[ \t]*(?:async[ \t]+def|def|class|import|from|@)\b")
_TWO_WORDS = re.compile(r"[^\W\d_][\w'’`*-]*[,;]? [`*(\"]*[^\W\d_]")  # noqa: RUF001
_PHRASE = re.compile(r"[^\W\d_][^=]*[.:!?。：！？]\**$")  # noqa: RUF001

_LONE_TAG = re.compile(r"(?:</?\w[^<>]*+>|\\(?:begin|end)\{\w+\})$")
_END_TOKENS = re.compile(r"(?:(?:<\|\w+\|>|</s>)\s*+)+\Z")
_LABEL = re.compile(r"[\r\n]*(?:python|py)3?[ \t]*(?:\r\n|\r|\n)", re.IGNORECASE)

_CODE_NODES = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Import,
    ast.ImportFrom,
    ast.Assign,
    ast.AugAssign,
    ast.Return,
    ast.For,
    ast.While,
    ast.If,
    ast.With,
    ast.Try,
    ast.Raise,
    ast.Assert,
    ast.Call,
    ast.Lambda,
    ast.Pass,
)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_NEW_SCOPES = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def extract_code(text: str) -> str | None:
    """The contract's rule: the first fenced block; no fence: the whole text.

    None if the first fence never closes.
    """
    block = next(_blocks(text), None)
    if block is None:
        return text
    return block.code if block.closed else None


def extract(text: str, policy: str = "auto", names: Collection[str] = ()) -> str | None:
    """The program in ``text``, or None if there is none.

    ``policy`` is one of ``POLICIES``: ``auto`` (see the module), ``first`` (``extract_code``),
    ``last`` (the last block that closes; no fence: the whole text; none closes: None), or
    ``none`` (the text as it is). ``names`` is what the checks use (``names_called``) and the
    entry point; only ``auto`` looks at it.

    Raises:
        ValueError: no such policy. No text raises.
    """
    match policy:
        case "auto":
            return _auto(text.removeprefix(_BOM), frozenset(names))
        case "first":
            return extract_code(text)
        case "last":
            blocks = list(_blocks(text))
            closed = [block.code for block in blocks if block.closed]
            return closed[-1] if closed else None if blocks else text
        case "none":
            return text
    raise ValueError(f"extraction must be one of {', '.join(POLICIES)}, not {policy!r}")


def names_called(sources: Iterable[str]) -> tuple[str, ...]:
    """The global names that checks use and none of them defines, sorted.

    A source that does not parse is passed over. Builtins never count, since nearly every check
    calls some: a task whose entry point is called ``max`` has to name it itself.
    """
    used: set[str] = set()
    bound: set[str] = set()
    for source in sources:
        loads, binds = _globals(textwrap.dedent(source).strip())
        used |= loads
        bound |= binds
    return tuple(sorted(used - bound))


# --- auto ---------------------------------------------------------------------------------


def _auto(text: str, names: frozenset[str]) -> str | None:
    if _is_code(text):
        return _plain(text)
    end = _END_TOKENS.search(text, max(0, len(text) - _MAX_LINE_BEFORE))
    text = text[: end.start()] if end else text
    answer = _without_reasoning(text, names)
    if answer is None or (answer != text and _is_code(answer)):
        return _plain(answer) if answer else answer
    blocks = list(_blocks_for_auto(answer, names))
    if blocks:
        return _from_blocks(answer, blocks, names)
    return _plain(_without_prose(answer, names))


def _from_blocks(text: str, blocks: Sequence[_Block], names: frozenset[str]) -> str:
    front = "".join(_lines(text)[: blocks[0].start])
    if blocks[0].bare and _is_code(front):
        defines = bool(names & _Block(front).strong) if names else blocks[0].tree is None
        if defines or _is_indented(front):
            return front  # the prompt had opened a fence, and this one closes it
    chosen = _chosen(blocks, names)
    if chosen is not None:
        return _joined(blocks, chosen, names)
    code = _without_prose(front, names)
    if _is_code(code) and (_is_indented(code) or names & _Block(code).strong):
        return code
    python = [block for block in blocks if block.language != "other"]
    solid = (block for block in python if block.code.strip() and block.solid)
    return (next(solid, None) or (python or blocks)[0]).code


def _chosen(blocks: Sequence[_Block], names: frozenset[str]) -> _Block | None:
    """The last block that defines one of the names, the most trustworthy kind first."""
    able = [block for block in reversed(blocks) if any(name in block.code for name in names)]
    python = [block for block in able if block.language != "other"]
    other = [block for block in able if block.language == "other"]
    kinds = (
        (block for block in python if names & block.strong and block.solid),
        (block for block in other if names & block.strong and block.tree),
        (block for block in python if names & block.strong),
        (block for block in python if names & block.weak),
    )
    return next((block for kind in kinds for block in kind), None)


def _joined(blocks: Sequence[_Block], chosen: _Block, names: frozenset[str]) -> str:
    """The chosen block with those that define what it needs, in order."""
    place = next(i for i, block in enumerate(blocks) if block is chosen)
    taken = {place}
    missing = (chosen.free | names) - chosen.strong - chosen.weak
    others = [*range(place - 1, -1, -1), *range(place + 1, len(blocks))]
    for i in others:
        block = blocks[i]
        if not missing or block.language == "other" or not block.may_define(missing):
            continue
        if block.tree is None or (i > place and not block.only_defines):
            continue
        if missing & (block.strong | block.weak) or "*" in block.weak:
            taken.add(i)
            missing = (missing | block.free) - block.strong - block.weak
    if taken == {place}:
        return chosen.code
    parts = [blocks[i].code for i in sorted(taken)]
    code = "\n".join(part if part.endswith(("\n", "\r")) else part + "\n" for part in parts)
    future = "".join(line.rstrip("\r\n") + "\n" for line in _FUTURE.findall(code))
    return future + _FUTURE.sub("", code) if future else code


def _without_reasoning(text: str, names: frozenset[str]) -> str | None:
    """The text without ``<think>…</think>``; None if it is all reasoning that never ends."""
    kept = ""
    for _ in range(_MAX_TAGS):
        tag = _next_tag(text)
        if tag is None:
            break
        before, after = kept + text[: tag.start()], text[tag.end() :]
        if not tag[1]:
            closing = [t for t in _TAG.finditer(text, tag.end()) if t[1]]
            if not closing:
                return before if _has_answer(before, frozenset()) else None
            close = next((t for t in closing if not _is_quoted(t)), closing[0])
            kept, text = before, text[close.end() :]
        elif _has_answer(after, names) and (
            not _mentions(before, names) or _mentions(after, names)
        ):
            kept, text = "", after
        else:
            kept, text = before, after
            continue
        if text[:1] == " " and text[1:2] not in (" ", "\t"):
            text = text[1:]
    return kept + text


def _next_tag(text: str) -> re.Match[str] | None:
    """The first tag that is no literal and, if it opens, begins a line."""
    if not _TAG.search(text):
        return None
    starts = [0, *accumulate(map(len, _lines(text)))]
    blocks = _blocks(text)
    block = next(blocks, None)
    for tag in _TAG.finditer(text):
        while block and starts[block.end] <= tag.start():
            block = next(blocks, None)
        if block and starts[block.start] <= tag.start() and (not tag[1] or block.tree):
            continue
        if not _is_quoted(tag) and (tag[1] or not _line_before(tag).strip()):
            return tag
    return None


def _line_before(tag: re.Match[str]) -> str:
    """What stands before a tag on its line, or the end of that."""
    before = tag.string[max(0, tag.start() - _MAX_LINE_BEFORE) : tag.start()]
    return before[max(before.rfind("\n"), before.rfind("\r")) + 1 :]


def _is_quoted(tag: re.Match[str]) -> bool:
    """Whether a tag stands in a string literal or in inline code, judged by its line."""
    before, after = _line_before(tag), tag.string[tag.end() : tag.end() + 1]
    return (
        before.count('"') % 2 == 1
        or before.count("`") % 2 == 1
        or (before.endswith("'") and after == "'")
        or (before.count("'") % 2 == 1 and after == "'")
    )


def _has_answer(text: str, names: frozenset[str]) -> bool:
    return (
        _is_code(text)
        or any(block.language != "other" for block in _blocks(text))
        or _is_code(_without_prose(text, names))
    )


def _mentions(text: str, names: frozenset[str]) -> bool:
    """Whether a definition of one of the names stands anywhere in the text."""
    found = re.finditer(r"^[ \t>]*(?:async[ \t]+)?(?:def|class)[ \t]+(\w+)", text, re.MULTILINE)
    return any(match[1] in names for match in found)


# --- text without fences ------------------------------------------------------------------


def _without_prose(text: str, names: frozenset[str]) -> str:
    """The code in unfenced text if nothing but prose before and after it is in the way."""
    lines = _lines(text)
    filled = [i for i, line in enumerate(lines) if line.strip()]
    if not filled or len(text) > _MAX_PARSE:
        return text
    first = filled[0]
    if lines[first][:1] in " \t":
        start = first
    else:
        start = next((i for i in filled if _CODE_START.match(lines[i])), -1)
        if start < 0 or (start != first and not _is_prose(lines[first])):
            return text
    cuts = [i for i in filled if i > start and _is_prose(lines[i])][:_MAX_CUTS]
    for end in (len(lines), *cuts):
        code = "".join(lines[start:end])
        if _is_code(code) and (_is_indented(code) or not names or names & _Block(code).strong):
            return code
    return text


def _is_prose(line: str) -> bool:
    """Whether a line is a sentence or a heading, which no line of Python looks like."""
    if line[:1] in " \t":
        return False
    words = line.strip().lstrip("#*->+0123456789.) ")
    first = re.match(r"\w*", words)
    if first and (keyword.iskeyword(first[0]) or first[0] in ("print", "exec")):
        return False
    return bool(_TWO_WORDS.match(words) or _PHRASE.match(words) or _LONE_TAG.match(line.strip()))


def _plain(code: str) -> str:
    """Code without a language's name alone on its first line, and without prompts."""
    label = _LABEL.match(code)
    if label and _is_code(code[label.end() :]):
        code = code[label.end() :]
    return _without_prompts(code)


def _without_prompts(code: str) -> str:
    """A pasted session without prompts and output; any other code as it is."""
    lines = _lines(code)
    first = next((line for line in lines if line.strip()), "")
    if not (match := _PROMPT.match(first)) or not match[1]:
        return code
    statements: list[list[str]] = []
    after_output = False
    for line in lines:
        match = _PROMPT.match(line.rstrip("\r\n"))
        if match and (match[1] or not after_output):
            if match[1]:
                statements.append([])
            statements[-1].append(line[match.end() :])
            after_output = False
        elif _DEFINES_LINE.match(line):
            return code
        elif line.strip():
            if line.startswith("Traceback ") and statements:
                statements[-1].clear()
            after_output = True
    stripped = "".join(line for statement in statements for line in statement)
    return stripped if _parse(stripped) else code


# --- fences -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Block:
    """A fenced block: lines ``start`` to ``end`` of its text, fences included."""

    code: str
    language: str = ""  # "python", "other", or "" for none and unknown ones
    closed: bool = True
    bare: bool = False  # nothing but the fence on its first line
    start: int = 0
    end: int = 0

    @cached_property
    def tree(self) -> ast.Module | None:
        return _parse(self.code)

    @property
    def solid(self) -> bool:
        """Whether this is an answer: code, or meant as finished code."""
        return self.tree is not None or (self.closed and self.language == "python")

    @cached_property
    def strong(self) -> frozenset[str]:
        """Names that the block defines or assigns at its top level."""
        return self._bindings[0]

    @property
    def weak(self) -> frozenset[str]:
        """Names that it imports or only sketches; ``*`` for a star import."""
        return self._bindings[1]

    @cached_property
    def free(self) -> frozenset[str]:
        used, bound = _globals(self.code)
        return frozenset(used - bound)

    @property
    def only_defines(self) -> bool:
        allowed = (*_DEFINITIONS, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)
        return self.tree is not None and all(isinstance(node, allowed) for node in self.tree.body)

    def may_define(self, names: Iterable[str]) -> bool:
        return "import *" in self.code or any(name in self.code for name in names)

    @cached_property
    def _bindings(self) -> tuple[frozenset[str], frozenset[str]]:
        if self.tree is None:
            return frozenset(a or b for a, b in _DEFINITION.findall(self.code)), frozenset()
        strong: set[str] = set()
        weak: set[str] = set()
        todo: list[ast.AST] = [self.tree] if not _is_indented(self.code) else []
        while todo:
            node = todo.pop()
            if isinstance(node, _DEFINITIONS):
                (weak if _is_stub(node) else strong).add(node.name)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                weak.update(name.asname or name.name.split(".")[0] for name in node.names)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                strong.add(node.id)
            elif not isinstance(node, _NEW_SCOPES):
                todo.extend(ast.iter_child_nodes(node))
        return frozenset(strong), frozenset(weak - strong)


@dataclass(frozen=True)
class _Opening:
    run: str
    width: int = 0  # columns of indentation
    quoted: bool = False
    language: str = ""
    code: str = ""  # what follows the info string on the same line, if it is code
    bare: bool = False


def _blocks_for_auto(text: str, names: frozenset[str]) -> Iterator[_Block]:
    """The blocks, those that wrap Python blocks replaced by these, and their code tidied."""
    for outer in _blocks(text):
        inner: list[_Block] = []
        wraps = outer.language != "python" or outer.code.lstrip().startswith("```")
        if wraps and "```" in outer.code and not _is_code(outer.code):
            inner = [block for block in _blocks(outer.code) if block.language == "python"]
        for block in inner or [outer]:
            code = _plain(block.code.removeprefix(_BOM))
            if names and _is_indented(code):
                width = _indent(next(line for line in _lines(code) if line.strip()))
                level = "".join(_unindent(line, width) for line in _lines(code))
                code = level if names & _Block(level).strong else code
            bare = outer.bare and not inner
            yield replace(block, code=code, bare=bare, start=outer.start, end=outer.end)


def _blocks(text: str) -> Iterator[_Block]:
    lines = _lines(text)
    repairs = iter(range(_MAX_REPAIRS))
    at = 0
    while at < len(lines):
        line = lines[at]
        end = at + 1
        if "```" in line or "~~~" in line:
            opening = _opening(line)
            if opening:
                block = _block(lines, at, opening, repairs)
                yield block
                end = block.end
            else:
                yield from _inline_blocks(line, at)
        at = end


def _opening(line: str) -> _Opening | None:
    line = line.rstrip("\r\n")
    match = _FENCE.match(line)
    if match and not (match["run"][0] == "`" and "`" in match["info"]):
        language, code = _info(match["info"])
        width = len(match["indent"].expandtabs(4))
        bare = not match["info"].strip() and not match["indent"].strip() and not match["quote"]
        return _Opening(match["run"], width, bool(match["quote"].strip()), language, code, bare)
    last = line.rfind("`")
    start = len(line[: last + 1].rstrip("`"))
    before = line[:start]
    if last + 1 - start < 3 or "```" in before or before[-1:] in ("'", '"'):
        return None
    info = line[last + 1 :]
    language, code = _info(info)
    if language == "python" or (not info.strip() and before.rstrip().endswith(":")):
        return _Opening("`" * (last + 1 - start), language=language, code=code)
    return None


def _info(info: str) -> tuple[str, str]:
    """The language that an info string names, and the code behind it."""
    info = info.strip()
    if _CODE_START.match(info):
        return "", info
    match = re.match(r"\{?\.?(?:lang(?:uage)?[-=:])?([\w+#.-]*)", info)
    word = match[1] if match else ""
    rest = info[match.end() :].strip() if match else ""
    code = rest if _CODE_START.match(rest) else ""
    if _PYTHON.fullmatch(word):
        return "python", code
    return ("other" if word.lower() in _OTHER else ""), code


def _inline_blocks(line: str, at: int) -> Iterator[_Block]:
    """Blocks that open and close on one line, as in "```python def f(): ...```"."""
    runs = list(re.finditer(r"`{3,}+", line))
    taken = -1
    for i, (a, b) in enumerate(pairwise(runs)):
        if i == taken or len(a[0]) != len(b[0]):
            continue
        code, language = line[a.end() : b.start()].strip(), ""
        word, _, rest = code.partition(" ")
        if _PYTHON.fullmatch(word) and rest:
            code, language = rest.strip(), "python"
        if _is_code(code):
            taken = i + 1
            yield _Block(code, language, start=at, end=at + 1)


def _block(lines: Sequence[str], at: int, opening: _Opening, repairs: Iterator[int]) -> _Block:
    """The block that a fence opens: closed by the rules, or where it then parses."""
    body, fence, others = _scan(lines, at, opening)
    whole, closed = "".join(body), fence is not None
    end = len(lines) if fence is None else fence + 1
    quotes = closed and ('"""' in whole or "'''" in whole)
    longer: Iterator[tuple[str, int]] = iter(())
    if opening.language == "other":
        others = []
    elif (others or quotes) and _parse(whole):
        # Only a fence glued to the very last line, where it stands in a comment, closes this.
        last = others[-1:] if fence is None else []
        others = [other for other in last if not "".join(body[other[0] + 1 :]).strip()]
    elif fence is not None and quotes and not opening.quoted and _is_open_string(whole):
        longer = ((whole + more, resume) for more, resume in _extended(lines, at, fence, opening))
    shorter = (("".join(body[:count]) + rest, resume) for count, rest, resume in others)
    for code, resume in chain(shorter, longer):
        if next(repairs, None) is None:
            break
        if _is_code(code):
            return _Block(code, opening.language, True, opening.bare, at, resume)
    return _Block(whole, opening.language, closed, opening.bare, at, end)


def _scan(
    lines: Sequence[str], at: int, opening: _Opening
) -> tuple[list[str], int | None, list[tuple[int, str, int]]]:
    """The lines of a block, the line that closes it by the rules, and where else it could end.

    The last is a list of: how many lines the block has then, what of the next line belongs to
    it too, and the line at which to read on.
    """
    body = [opening.code + "\n"] if opening.code else []
    others: list[tuple[int, str, int]] = []
    width = _margin(lines, at, opening)
    for end in range(at + 1, len(lines)):
        line = lines[end]
        if opening.quoted:
            quote = re.match(r" {0,3}>[ ]?", line)
            if not quote:
                return body, end - 1, others
            line = line[quote.end() :]
        kind = _closes(line, opening) if opening.run[:3] in line else ""
        if kind == "fence":
            return body, end, others
        if kind == "opens":
            others.append((len(body), "", end))
        elif kind == "text":
            rest = line.rstrip(" \t\r\n").rstrip(opening.run[0])
            rest = _unindent(rest[: rest.find(opening.run)] if opening.run in rest else rest, width)
            others.append((len(body), rest + "\n" if rest.strip() else "", end + 1))
        body.append(_unindent(line, width))
    return body, None, others


def _closes(line: str, opening: _Opening) -> str:
    """How a line in a block may end it.

    ``fence`` by the rules; ``opens`` because it opens a Python block; ``text`` if it is a fence
    that is indented too far or has text behind it; else empty. A fence glued to the end of a
    line of code closes nothing, as in CommonMark.
    """
    bare = line.strip(" \t\r\n")
    if opening.run not in bare:
        return ""
    if not bare.strip(opening.run[0]) and _indent(line) <= opening.width + 3:
        return "fence"
    other = _opening(line)
    if other and other.run[0] == opening.run[0] and other.language == "python":
        return "opens"
    return "text" if bare.startswith(opening.run[0]) else ""


def _extended(
    lines: Sequence[str], at: int, fence: int, opening: _Opening
) -> Iterator[tuple[str, int]]:
    """What follows a closing fence, with it, up to each later one, and the line after that."""
    body = [lines[fence]]
    width = _margin(lines, at, opening)
    for end in range(fence + 1, len(lines)):
        if opening.run[:3] in lines[end] and _closes(lines[end], opening) == "fence":
            yield "".join(body), end + 1
        body.append(_unindent(lines[end], width))


def _margin(lines: Sequence[str], at: int, opening: _Opening) -> int:
    """The columns to take off each line of a block: its fence's, if its code has as many."""
    if opening.code or opening.quoted or not opening.width:
        return opening.width
    first = next((line for line in islice(lines, at + 1, None) if line.strip()), "")
    return min(opening.width, _indent(first))


def _indent(line: str) -> int:
    """The columns of blank space in front of a line."""
    return len(line[: len(line) - len(line.lstrip(" \t"))].expandtabs(4))


def _unindent(line: str, width: int) -> str:
    """The line without its first ``width`` columns of blank space, as far as it has them."""
    column = at = 0
    while column < width and line[at : at + 1] in (" ", "\t"):
        column += 4 - column % 4 if line[at] == "\t" else 1
        at += 1
    return " " * (column - width) + line[at:]


# --- Python -------------------------------------------------------------------------------


def _lines(text: str) -> list[str]:
    return list(io.StringIO(text, newline=""))


def _is_indented(code: str) -> bool:
    """Whether the first line of code is indented, as in the body of a function."""
    # Line by line: possessive groups lose their place in Python before 3.11.5.
    for line in io.StringIO(code, newline=""):
        bare = line.strip(" \t\f\r\n")
        if not line.endswith(("\r", "\n")) or (bare and not bare.startswith("#")):
            return line.startswith((" ", "\t"))
    return False


def _parse(code: str) -> ast.Module | None:
    """The syntax tree of a module or of the indented body of a function, if it is one."""
    if len(code) > _MAX_PARSE:
        return None
    try:
        return _compiled(code)
    except _NOT_PARSED:
        return None


def _compiled(code: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse("async def _():\n" + code if _is_indented(code) else code)


def _is_code(text: str) -> bool:
    """Whether text is Python, and more than a word or two that happen to parse."""
    if text.lstrip().startswith("~~~"):
        return False
    tree = _parse(text)
    if tree is None:
        return False
    nodes = ast.walk(tree)
    if _is_indented(text):
        nodes = (node for top in tree.body[0].body for node in ast.walk(top))  # type: ignore[attr-defined]
    return any(
        isinstance(node, _CODE_NODES) or (isinstance(node, ast.AnnAssign) and node.value)
        for node in nodes
    )


def _is_open_string(code: str) -> bool:
    """Whether code ends inside a triple-quoted string."""
    try:
        _compiled(code)
    except SyntaxError as error:
        return error.msg.startswith("unterminated triple-quoted")
    except _NOT_PARSED:
        pass
    return False


def _is_stub(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    """Whether a function's body is only a docstring, ``...``, ``pass`` or NotImplementedError."""
    return not isinstance(node, ast.ClassDef) and all(
        isinstance(line, ast.Pass)
        or (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))
        or (isinstance(line, ast.Raise) and "NotImplementedError" in ast.dump(line))
        for line in node.body
    )


def _globals(code: str) -> tuple[set[str], set[str]]:
    """The global names that code uses (builtins apart), and those that it binds."""
    used: set[str] = set()
    bound: set[str] = set()
    if len(code) > _MAX_PARSE:
        return used, bound
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            top = symtable.symtable(code, "<text>", "exec")
    except _NOT_PARSED:
        return used, bound
    todo = [top]
    while todo:
        table = todo.pop()
        todo.extend(table.get_children())
        for symbol in table.get_symbols():
            if symbol.is_global() and symbol.is_referenced():
                used.add(symbol.get_name())
            if (table is top or symbol.is_global()) and (
                symbol.is_assigned() or symbol.is_imported()
            ):
                bound.add(symbol.get_name())
    return used - bound - _BUILTINS, bound
