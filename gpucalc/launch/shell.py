"""Shell text read as data: which commands it would run, with which words, under which variables.

Nothing is executed. Assignments, arrays, quotes, continuations, here-documents, defaults (`${N:-8}`) and whole-number
arithmetic are followed; what only a running shell can know (command substitution, arguments, variables set elsewhere)
becomes a mark in the word, so that whoever needs the word can name what is missing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from gpucalc.errors import DataError

LARGEST = 2_000_000  # characters of a script, and of what its variables may grow to
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
_MARK = re.compile("\ue000(.*?)\ue001", re.DOTALL)
_BLANK = "\ue002"  # a blank inside a mark, at which no word is split
_OPENING = {"if", "for", "while", "until", "case", "function"}
_CLOSING = {"fi", "done", "esac"}
_SKIPPED = {"then", "else", "elif", "do", "{", "}", "!", "time", "exec", "nohup", "command", "env"}
_DECLARING = {"export", "declare", "local", "readonly", "typeset"}


def missing(word: str) -> list[str]:
    """What a word still lacks: names of variables, or commands in $( ).

    >>> missing("8"), missing(mark("NNODES"))
    ([], ['NNODES'])
    """
    return [name.replace(_BLANK, " ") for name in _MARK.findall(word)]


def mark(name: str) -> str:
    """The mark of something that only a running shell knows."""
    inside = re.sub(r"\s", _BLANK, name)
    return f"\ue000{inside}\ue001"


def shown(word: str) -> str:
    """A word for people, marks written as in a shell."""
    return _MARK.sub(lambda m: f"${m[1]}" if _NAME.fullmatch(m[1]) else m[1].replace(_BLANK, " "), word)


@dataclass
class Script:
    """What a text would run."""

    commands: list[list[str]] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, list[str]] = field(default_factory=dict)
    documents: list[str] = field(default_factory=list)  # here-documents
    slurm: dict[str, str] = field(default_factory=dict)  # #SBATCH options
    notes: list[str] = field(default_factory=list)


@dataclass
class _Part:
    """A piece of a word: literal text, or an expression to expand."""

    text: str
    expression: bool = False
    quoted: bool = False


_Word = list[_Part]
_Statement = tuple[list[_Word], dict[str, tuple[bool, list[_Word]]]]


def read_script(text: str) -> Script:
    """The commands of a text, in order.

    >>> read_script('TP=8\\ntorchrun x.py --tp $TP \\\\\\n  --pp "$((TP / 2))"').commands
    [['torchrun', 'x.py', '--tp', '8', '--pp', '4']]
    """
    if len(text) > LARGEST:
        raise DataError(f"the launch script is longer than {LARGEST:,} characters")
    script = Script()
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    text = text.translate(dict.fromkeys(range(0xE000, 0xE003)))
    if re.search(r"\\[ \t]+\n", text):
        script.notes.append("a backslash before a space does not continue a line in a shell; read as if it did")
        text = re.sub(r"\\[ \t]+\n", "\\\n", text)
    _slurm(text, script)
    depth = 0
    for words, arrays in _Lexer(text, script).statements():
        for name, (more, items) in arrays.items():
            values = [field for item in items for field in _expand(item, script)]
            script.arrays[name] = [*script.arrays.get(name, []), *values] if more else values
        depth = _statement(words, script, depth)
    return script


def _slurm(text: str, script: Script) -> None:
    """#SBATCH lines, and the variables that Slurm sets from them."""
    short = {"-N": "nodes", "-n": "ntasks", "-G": "gpus"}
    for line in re.findall(r"^#SBATCH[ \t]+(.+)$", text, re.MULTILINE):
        found = re.match(r"(?:--([a-z-]+)|(-[NnG]))[= \t]*([^\s#]*)", line)
        if found:
            script.slurm[found[1] or short[found[2]]] = found[3]
    nodes, tasks = script.slurm.get("nodes", ""), script.slurm.get("ntasks-per-node", "")
    gpus = script.slurm.get("gpus-per-node", "").rpartition(":")[2]
    known = {"SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes, "SLURM_GPUS_PER_NODE": gpus}
    known |= {"SLURM_GPUS_ON_NODE": gpus, "SLURM_NTASKS_PER_NODE": tasks}
    if nodes.isdigit() and tasks.isdigit() and len(nodes) < 8 and len(tasks) < 8:
        known["SLURM_NTASKS"] = known["SLURM_NPROCS"] = str(int(nodes) * int(tasks))
    script.variables |= {name: value for name, value in known.items() if value.isdigit()}


def _statement(words: list[_Word], script: Script, depth: int) -> int:
    """Take one statement: assignments set variables, the rest is a command. Returns the depth of conditions."""
    first = 0
    while first < len(words):
        plain = words[first][0].text if len(words[first]) == 1 and not words[first][0].expression else ""
        if plain in _CLOSING:
            depth = max(0, depth - 1)
        elif plain in _OPENING:
            return depth + 1
        elif plain not in _SKIPPED:
            break
        first += 1
    rest = words[first:]
    if rest and rest[0] and rest[0][0].text in _DECLARING and not rest[0][0].expression:
        rest = [w for w in rest[1:] if not (w and w[0].text.startswith("-") and not w[0].expression)]
        for word in rest:
            _assign(word, script, depth)
        return depth
    while rest and _assign(rest[0], script, depth):
        rest = rest[1:]
    fields = [one for word in rest for one in _expand(word, script)]
    if fields:
        script.commands.append(fields)
    return depth


def _assign(word: _Word, script: Script, depth: int) -> bool:
    head = word[0] if word else None
    found = _ASSIGNMENT.match(head.text) if head and not head.expression and not head.quoted else None
    if head is None or found is None:
        return False
    name, more = found[1], bool(found[2])
    value = "".join(_text(part, script) for part in [_Part(head.text[found.end() :]), *word[1:]])
    value = (script.variables.get(name, "") if more else "") + value
    if len(value) > LARGEST:
        raise DataError(f"the variable {name} grows beyond {LARGEST:,} characters")
    if depth and script.variables.get(name, value) != value:
        script.notes.append(f"{name} is set inside a condition or loop; its last value, {shown(value)[:40]}, is taken")
    script.variables[name] = value
    return True


def _expand(word: _Word, script: Script) -> list[str]:
    """The fields of a word: an unquoted expansion is split at blanks, an array gives one field an item."""
    fields: list[str] = []
    open_field: str | None = None
    vanished = False
    for part in word:
        array = _array(part, script)
        if array is not None:
            pieces = array
        elif part.expression and not part.quoted:
            pieces = _text(part, script).split()
        else:
            open_field = (open_field or "") + _text(part, script)
            continue
        vanished |= array == []
        for index, piece in enumerate(pieces):
            if index == 0:
                open_field = (open_field or "") + piece
            else:
                fields.append(open_field or "")
                open_field = piece
    if open_field or (open_field is not None and not vanished):
        fields.append(open_field)
    if sum(map(len, fields)) > LARGEST:
        raise DataError(f"a command grows beyond {LARGEST:,} characters")
    return fields


def _array(part: _Part, script: Script) -> list[str] | None:
    if not part.expression:
        return None
    if part.text in {"@", "*"}:
        note = "the script's own arguments ($@) are not known, and left out"
        script.notes += [] if note in script.notes else [note]
        return []
    found = re.fullmatch(r"([A-Za-z_]\w*)\[[@*]\]", part.text)
    if not found:
        return None
    if found[1] in script.arrays:
        return script.arrays[found[1]]
    value = script.variables.get(found[1])
    return [mark(found[1])] if value is None else [value]


def _text(part: _Part, script: Script) -> str:
    if not part.expression:
        return part.text
    text = part.text
    if text.startswith("(("):
        return _arithmetic(text[2:].removesuffix("))"), script)
    found = re.fullmatch(r"([A-Za-z_]\w*)(?:(:?[-=?+])(.*))?", text, re.DOTALL)
    if not found:
        return mark(text if text.startswith("(") else f"${{{text}}}" if len(text) > 1 else f"${text}")
    name, operator, word = found[1], found[2] or "", found[3] or ""
    value = script.variables.get(name)
    if value is None and name in script.arrays:
        value = (script.arrays[name] or [""])[0]
    unset = value is None or (value == "" and operator.startswith(":"))
    if operator.endswith(("-", "=")) and unset:
        return "".join(_text(piece, script) for piece in _Lexer(word, script).parts())
    if operator.endswith("+"):
        return "" if unset else word
    return mark(name) if value is None else value


def _arithmetic(text: str, script: Script) -> str:
    """Whole-number arithmetic of a shell; a mark where a name is not known."""
    if len(text) > 200:
        return mark("((…))")
    lacking: list[str] = []

    def value(found: re.Match[str]) -> str:
        known = script.variables.get(found[1], "")
        if not re.fullmatch(r"-?\d{1,15}", known):
            lacking.extend(missing(known) or [found[1]])
        return known

    plain = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", value, text)
    if lacking:
        return "".join(mark(name) for name in lacking)
    try:
        return str(_whole(ast.parse(plain.strip().replace("/", "//"), mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return mark(f"(({text}))")


def _whole(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_whole(node.operand)
    if isinstance(node, ast.BinOp):
        left, right = _whole(node.left), _whole(node.right)
        match node.op:
            case ast.Add():
                return left + right
            case ast.Sub():
                return left - right
            case ast.Mult():
                return left * right
            case ast.FloorDiv():
                return left // right
            case ast.Mod():
                return left % right
    raise ValueError("not whole-number arithmetic")


class _Lexer:
    """Splits a text into statements; a word keeps its expansions for later, when its variables are known."""

    def __init__(self, text: str, script: Script) -> None:
        self.text, self.at, self.script = text, 0, script
        self.delimiters: list[tuple[str, bool]] = []

    def peek(self, offset: int = 0) -> str:
        place = self.at + offset
        return self.text[place] if place < len(self.text) else ""

    def statements(self) -> Iterator[_Statement]:
        words: list[_Word] = []
        arrays: dict[str, tuple[bool, list[_Word]]] = {}
        while self.at < len(self.text):
            char = self.peek()
            if char == "\\" and self.peek(1) == "\n":
                self.at += 2
            elif char in " \t":
                self.at += 1
            elif char == "#":
                self._skip_line()
            elif char in "\n;&|()":
                self.at += 1
                if char == "\n":
                    self._skip_documents()
                if words or arrays:
                    yield words, arrays
                    words, arrays = [], {}
            elif char in "<>":
                self._redirection(words)
            else:
                array = re.compile(r"([A-Za-z_]\w*)(\+?)=\(").match(self.text, self.at)
                if array:
                    self.at = array.end()
                    arrays[array[1]] = (bool(array[2]), self._array_items())
                else:
                    words.append(self.parts())
        if words or arrays:
            yield words, arrays

    def _skip_line(self) -> None:
        end = self.text.find("\n", self.at)
        self.at = len(self.text) if end < 0 else end

    def _array_items(self) -> list[_Word]:
        items: list[_Word] = []
        while self.at < len(self.text):
            char = self.peek()
            if char == ")":
                self.at += 1
                return items
            if char in " \t\n":
                self.at += 1
            elif char == "\\" and self.peek(1) == "\n":
                self.at += 2
            elif char == "#":
                self._skip_line()
            elif char in ";&|(<>":
                self.at += 1
            else:
                items.append(self.parts())
        raise DataError("the script ends inside an array: a closing parenthesis is missing")

    def _redirection(self, words: list[_Word]) -> None:
        if self.text.startswith("<<", self.at) and not self.text.startswith("<<<", self.at):
            found = re.compile(r"<<(-?)[ \t]*(['\"\\]?)([\w.-]+)\2?").match(self.text, self.at)
            if found:
                self.at = found.end()
                self.delimiters.append((found[3], bool(found[1])))
                return
        if words and len(words[-1]) == 1 and words[-1][0].text.isdigit() and self.text[self.at - 1].isdigit():
            words.pop()
        while self.peek() and self.peek() in "<>&":
            self.at += 1
        while self.peek() and self.peek() in " \t":
            self.at += 1
        if self.peek() and self.peek() not in "\n;|()#":
            self.parts()

    def _skip_documents(self) -> None:
        for delimiter, tabs in self.delimiters:
            lines = []
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                line = self.text[self.at : end]
                self.at = min(end + 1, len(self.text))
                if (line.lstrip("\t") if tabs else line) == delimiter:
                    break
                lines.append(line)
            self.script.documents.append("\n".join(lines) + "\n")
        self.delimiters = []

    def parts(self) -> _Word:
        """One word up to an unquoted blank or operator."""
        word: _Word = []
        while self.at < len(self.text):
            char = self.peek()
            if char in " \t\n;&|()<>":
                break
            if char == "\\":
                if self.peek(1) == "\n":
                    self.at += 2
                    break
                word.append(_Part(self.peek(1), quoted=True))
                self.at += 2
            elif char == "'":
                end = self.text.find("'", self.at + 1)
                if end < 0:
                    raise DataError("the script ends inside a quotation: a ' is missing")
                word.append(_Part(self.text[self.at + 1 : end], quoted=True))
                self.at = end + 1
            elif char == '"':
                self.at += 1
                self._double_quoted(word)
            elif char in "$`":
                word.append(self._expression(quoted=False))
            else:
                end = self.at
                while end < len(self.text) and self.text[end] not in " \t\n;&|()<>\\'\"$`":
                    end += 1
                word.append(_Part(self.text[self.at : end]))
                self.at = end
        return word

    def _double_quoted(self, word: _Word) -> None:
        word.append(_Part("", quoted=True))
        while self.at < len(self.text):
            char = self.peek()
            if char == '"':
                self.at += 1
                return
            if char == "\\" and self.peek(1) and self.peek(1) in '"\\$`\n':
                word.append(_Part("" if self.peek(1) == "\n" else self.peek(1), quoted=True))
                self.at += 2
            elif char in "$`":
                word.append(self._expression(quoted=True))
            else:
                end = self.at + 1
                while end < len(self.text) and self.text[end] not in '"\\$`':
                    end += 1
                word.append(_Part(self.text[self.at : end], quoted=True))
                self.at = end
        raise DataError('the script ends inside a quotation: a " is missing')

    def _expression(self, quoted: bool) -> _Part:
        """What follows a $ or a backquote, unexpanded: NAME, {…} without its braces, (…) or ((…))."""
        text, start = self.text, self.at
        if self.peek() == "`":
            end = text.find("`", start + 1)
            self.at = len(text) if end < 0 else end + 1
            return _Part(f"({text[start + 1 : self.at - 1]})", expression=True, quoted=quoted)
        opening = self.peek(1)
        if opening in {"{", "("}:
            self.at = self._closing(start + 1)
            inner = text[start + 1 : self.at]
            return _Part(inner[1:-1] if opening == "{" else inner, expression=True, quoted=quoted)
        name = _NAME.match(text, start + 1)
        if name:
            self.at = name.end()
            return _Part(name[0], expression=True, quoted=quoted)
        if opening and opening in "@*#?$!-0123456789":
            self.at = start + 2
            return _Part(opening, expression=True, quoted=quoted)
        self.at = start + 1
        return _Part("$", quoted=True)

    def _closing(self, at: int) -> int:
        """The place after the bracket that closes the one at `at`."""
        pairs = {"{": "}", "(": ")"}
        opening, depth = self.text[at], 0
        for place in range(at, len(self.text)):
            depth += (self.text[place] == opening) - (self.text[place] == pairs[opening])
            if depth == 0:
                return place + 1
        raise DataError(f"the script ends inside ${opening}: a closing {pairs[opening]} is missing")
