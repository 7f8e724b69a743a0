"""Shell text read as data: which commands it would run, with which words, under which variables.

Nothing is executed. Assignments, arrays, quotes, continuations, here-documents, defaults (`${N:-8}`) and whole-number
arithmetic are followed; what only a running shell can know (command substitution, arguments, variables set elsewhere)
becomes a mark in the word, so that whoever needs the word can name what is missing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpucalc.core.errors import DataError
from gpucalc.launch.read.shell.arithmetic import compared, whole
from gpucalc.launch.read.shell.lexer import NAME, Lexer, Part, Word, without_functions

MOST_CALLS = 100  # of functions of a script
LARGEST = 2_000_000  # characters of a script, and of what its variables may grow to
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
_MARK = re.compile("\ue000(.*?)\ue001", re.DOTALL)
_BLANK = "\ue002"  # a blank inside a mark, at which no word is split
_OPENING = {"if", "for", "while", "until", "case", "function"}
_CLOSING = {"fi", "done", "esac"}
_SKIPPED = {"then", "else", "elif", "do", "{", "}", "!", "time", "exec", "nohup", "command", "env"}
_PRINTING = {"echo", "printf", ":", "true", "cat", "tee", "logger"}  # their words are printed, not run
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
    return _MARK.sub(lambda m: f"${m[1]}" if NAME.fullmatch(m[1]) else m[1].replace(_BLANK, " "), word)


@dataclass
class Branch:
    """A condition or loop around a statement: whether it runs, None where only a running shell knows."""

    runs: bool | None = None
    asks: bool = False  # its condition is not over
    done: bool = False  # an earlier branch of the same if runs


@dataclass
class Script:
    """What a text would run."""

    commands: list[list[str]] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, list[str]] = field(default_factory=dict)
    documents: list[str] = field(default_factory=list)  # here-documents
    slurm: dict[str, str] = field(default_factory=dict)  # #SBATCH options
    notes: list[str] = field(default_factory=list)
    defaults: bool = True
    branches: list[Branch] = field(default_factory=list)  # what encloses the statement that is read
    functions: dict[str, str] = field(default_factory=dict)  # bodies
    arguments: list[str] | None = None  # of the function that runs; None: the script's own, which nobody knows
    called: list[str] = field(default_factory=list)  # functions that ran; of those that run now, the last


def read_script(text: str, around: Mapping[str, str] | None = None, *, defaults: bool = True) -> Script:
    """The commands of a text, in order.

    around: variables that stand before the text begins. A variable that nobody sets and the text reads is looked for
    in this process's environment, where only whole numbers are taken. defaults: whether `${V:-d}` gives d where V is
    unset; without it V is missing, which shows what hangs on a default alone.

    >>> read_script('TP=8\\ntorchrun x.py --tp $TP \\\\\\n  --pp "$((TP / 2))"').commands
    [['torchrun', 'x.py', '--tp', '8', '--pp', '4']]
    """
    if len(text) > LARGEST:
        raise DataError(f"the launch script is longer than {LARGEST:,} characters")
    script = Script(variables=dict(around or {}), defaults=defaults)
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    text = text.translate(dict.fromkeys(range(0xE000, 0xE003)))
    if re.search(r"\\[ \t]+\n", text):
        script.notes.append("a backslash before a space does not continue a line in a shell; read as if it did")
        text = re.sub(r"\\[ \t]+\n", "\\\n", text)
    _slurm(text, script)
    _run(without_functions(text, script.functions), script)
    for name in [name for name in script.functions if name not in script.called]:
        _call(name, None, script)  # called from elsewhere, or by a program of the script
    return script


def _run(text: str, script: Script) -> None:
    """Take the statements of a text, of the script itself or of a function's body."""
    lexer, taken = Lexer(text), 0
    for words, arrays in lexer.statements():
        # A here-document is expanded where its command stands, unless its delimiter is quoted.
        for document, quoted in lexer.documents[taken:]:
            script.documents.append(document if quoted else _expanded(document, script))
            taken += 1
        words = _keywords(words, script)
        if any(branch.runs is False for branch in script.branches):
            script.called += [word[0].text for word in words[:1] if word[0].text in script.functions]
            continue
        for name, (more, items) in arrays.items():
            values = [field for item in items for field in _expand(item, script)]
            script.arrays[name] = [*script.arrays.get(name, []), *values] if more else values
        _statement(words, script, sum(branch.runs is None for branch in script.branches))


def _call(name: str, arguments: list[str] | None, script: Script) -> None:
    """Run a function's body with its arguments; functions that call each other in a circle end in words."""
    if len(script.called) > MOST_CALLS:
        raise DataError(f"the script calls functions more than {MOST_CALLS} times")
    script.called.append(name)
    outer, script.arguments = script.arguments, arguments
    _run(script.functions[name], script)
    script.arguments = outer


def _expanded(document: str, script: Script) -> str:
    text = "".join(_text(part, script) for part in Lexer(document).document())
    if len(text) > LARGEST:
        raise DataError(f"a here-document grows beyond {LARGEST:,} characters")
    return text


def _variable(name: str, script: Script) -> str | None:
    """The value of a variable: assigned in the text, or a whole number of the environment."""
    if name.isdigit():  # an argument
        place = int(name) - 1
        known = script.arguments or []
        return known[place] if place < len(known) else None if script.arguments is None else ""
    value = script.variables.get(name)
    if value is None and name in script.arrays:
        value = (script.arrays[name] or [""])[0]
    if value is None and re.fullmatch(r"\d{1,9}", os.environ.get(name, "")):
        value = os.environ[name]
        note = f"{name} = {value} is taken from the environment"
        script.notes += [] if note in script.notes else [note]
    return value


def _slurm(text: str, script: Script) -> None:
    """#SBATCH lines, and the variables that Slurm sets from them."""
    short = {"-N": "nodes", "-n": "ntasks", "-G": "gpus"}
    for line in re.findall(r"^#SBATCH[ \t]+(.+)$", text, re.MULTILINE):
        found = re.match(r"(?:--([a-z-]+)|(-[NnG]))[= \t]*([^\s#]*)", line)
        if found:
            script.slurm[found[1] or short[found[2]]] = found[3]
    script.variables |= slurm_variables(script.slurm)


def slurm_variables(options: Mapping[str, str]) -> dict[str, str]:
    """The variables that Slurm sets from its options: nodes, tasks and GPUs of a node.

    >>> slurm_variables({"nodes": "4", "gpus-per-node": "h100:8"})
    {'SLURM_NNODES': '4', 'SLURM_JOB_NUM_NODES': '4', 'SLURM_GPUS_PER_NODE': '8', 'SLURM_GPUS_ON_NODE': '8'}
    """
    nodes, tasks = options.get("nodes", ""), options.get("ntasks-per-node", "")
    gpus = options.get("gpus-per-node", "").rpartition(":")[2]
    known = {"SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes, "SLURM_GPUS_PER_NODE": gpus}
    known |= {"SLURM_GPUS_ON_NODE": gpus, "SLURM_NTASKS_PER_NODE": tasks}
    if nodes.isdigit() and tasks.isdigit() and len(nodes) < 8 and len(tasks) < 8:
        known["SLURM_NTASKS"] = known["SLURM_NPROCS"] = str(int(nodes) * int(tasks))
    return {name: value for name, value in known.items() if value.isdigit()}


def _keywords(words: list[Word], script: Script) -> list[Word]:
    """The words of a statement after those of the grammar, which open and close branches."""
    branches = script.branches
    for first, word in enumerate(words):
        plain = word[0].text if len(word) == 1 and not word[0].expression else ""
        if plain in _CLOSING:
            branches[:] = branches[:-1]
        elif plain == "if":
            branches.append(Branch(_test(words[first + 1 :], script), asks=True))
            return []
        elif plain in {"elif", "else"} and branches:
            last = branches[-1]
            last.done |= last.runs is True
            known = last.runs is not None or last.done
            if plain == "elif":
                last.asks = True
                last.runs = False if last.done else _test(words[first + 1 :], script) if known else None
                return []
            last.runs = not last.done if known else None
        elif plain in _OPENING:
            _loop(words[first:], script)
            branches.extend([Branch()] if plain != "function" else [])
            return []
        elif plain == "then" and branches:
            branches[-1].asks = False
        elif plain not in _SKIPPED:
            if branches and branches[-1].asks and not branches[-1].done:
                branches[-1].runs = None  # a condition of several parts
            return words[first:]
    return []


def _test(words: list[Word], script: Script) -> bool | None:
    """Whether `[ … ]`, `[[ … ]]` or `test …` holds; None where that hangs on what the text does not say."""
    fields = [one for word in words for one in _expand(word, script)]
    if not fields or fields[0] not in {"[", "[[", "test"} or any(missing(one) for one in fields):
        return None
    ends = {"[": "]", "[[": "]]"}.get(fields[0])
    if ends and fields[-1] != ends:
        return None
    match fields[1:-1] if ends else fields[1:]:
        case ["!", *rest]:
            inner = compared(rest)
            return None if inner is None else not inner
        case rest:
            return compared(rest)


def _statement(rest: list[Word], script: Script, depth: int) -> None:
    """Take one statement: assignments set variables, the rest is a command. depth: branches that may not run."""
    if rest and rest[0] and rest[0][0].text in _DECLARING and not rest[0][0].expression:
        rest = [w for w in rest[1:] if not (w and w[0].text.startswith("-") and not w[0].expression)]
        for word in rest:
            _assign(word, script, depth)
        return
    while rest and _assign(rest[0], script, depth):
        rest = rest[1:]
    fields = [one for word in rest for one in _expand(word, script)]
    if fields and fields[0] in script.functions:
        _call(fields[0], fields[1:], script)
    elif fields == ["shift"] and script.arguments is not None:
        script.arguments = script.arguments[1:]
    elif fields and fields[0].rpartition("/")[2] not in _PRINTING:
        script.commands.append(fields)


def _loop(words: list[Word], script: Script) -> None:
    """The variable of `for NAME in WORDS`: the one value of it, or a mark that names them all."""
    plain = ["".join(part.text for part in word) for word in words[:3]]
    if len(words) < 4 or plain[0] != "for" or plain[2] != "in" or not NAME.fullmatch(plain[1]):
        return
    fields = [one for word in words[3:] for one in _expand(word, script)]
    some = " ".join(fields)[:60]
    script.variables[plain[1]] = fields[0] if len(fields) == 1 else mark(f"{plain[1]} (a loop over {some})")


def _assign(word: Word, script: Script, depth: int) -> bool:
    head = word[0] if word else None
    found = _ASSIGNMENT.match(head.text) if head and not head.expression and not head.quoted else None
    if head is None or found is None:
        return False
    name, more = found[1], bool(found[2])
    value = "".join(_text(part, script) for part in [Part(head.text[found.end() :]), *word[1:]])
    value = (script.variables.get(name, "") if more else "") + value
    if len(value) > LARGEST:
        raise DataError(f"the variable {name} grows beyond {LARGEST:,} characters")
    if depth and script.variables.get(name, value) != value:
        script.notes.append(f"{name} is set inside a condition or loop; its last value, {shown(value)[:40]}, is taken")
    script.variables[name] = value
    return True


def _expand(word: Word, script: Script) -> list[str]:
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


def _array(part: Part, script: Script) -> list[str] | None:
    """The fields of an expression that gives several; None for any other.

    As in bash: "${A[@]}" gives one field an item, "${A[*]}" one field in all, and both without quotes are split at
    blanks.
    """
    if not part.expression:
        return None
    if part.text in {"@", "*"} and script.arguments is not None:
        if part.quoted:
            return [" ".join(script.arguments)] if part.text == "*" else script.arguments
        return [field for item in script.arguments for field in item.split()]
    if part.text in {"@", "*"}:
        note = "the script's own arguments ($@) are not known, and left out"
        script.notes += [] if note in script.notes else [note]
        return []
    found = re.fullmatch(r"([A-Za-z_]\w*)\[([@*])\]", part.text)
    if not found:
        return None
    items = _items(found[1], script)
    if not part.quoted:
        return [field for item in items for field in item.split()]
    return [" ".join(items)] if found[2] == "*" else items


def _items(name: str, script: Script) -> list[str]:
    if name in script.arrays:
        return script.arrays[name]
    value = _variable(name, script)
    return [mark(name)] if value is None else [value]


def _text(part: Part, script: Script) -> str:
    if not part.expression:
        return part.text
    text = part.text
    if text.startswith("(("):
        return _arithmetic(text[2:].removesuffix("))"), script)
    array = re.fullmatch(r"(#?)([A-Za-z_]\w*)\[(@|\*|\d{1,4})\]", text)
    if array:
        items = _items(array[2], script)
        if array[1]:
            return str(len(items)) if array[3] in "@*" else str(len("".join(items[int(array[3]) : int(array[3]) + 1])))
        return " ".join(items) if array[3] in "@*" else "".join(items[int(array[3]) : int(array[3]) + 1])
    if text == "#" and script.arguments is not None:
        return str(len(script.arguments))
    if text in {"@", "*"} and script.arguments is not None:
        return " ".join(script.arguments)
    found = re.fullmatch(r"([A-Za-z_]\w*|[1-9]\d?)(?:(:?[-=?+])(.*))?", text, re.DOTALL)
    if not found:
        return mark(text if text.startswith("(") else f"${{{text}}}" if len(text) > 1 else f"${text}")
    name, operator, word = found[1], found[2] or "", found[3] or ""
    value = _variable(name, script)
    unset = value is None or (value == "" and operator.startswith(":"))
    if operator.endswith(("-", "=")) and unset:
        if not script.defaults:
            return mark(name)
        value = "".join(_text(piece, script) for piece in Lexer(word).everything())
        if operator.endswith("="):
            script.variables[name] = value
        return value
    if operator.endswith("+"):
        return "" if unset else "".join(_text(piece, script) for piece in Lexer(word).everything())
    return mark(name) if value is None else value


def _arithmetic(text: str, script: Script) -> str:
    """Whole-number arithmetic of a shell; a mark where a name is not known."""
    if len(text) > 200:
        return mark("((…))")
    lacking: list[str] = []

    def value(found: re.Match[str]) -> str:
        known = _variable(found[1], script) or ""
        if not re.fullmatch(r"-?\d{1,15}", known):
            lacking.extend(missing(known) or [found[1]])
        return known

    text = "".join(_text(part, script) for part in Lexer(text).document())
    lacking.extend(missing(text))
    plain = re.sub(r"([A-Za-z_]\w*)", value, _MARK.sub("", text))
    if lacking:
        return "".join(mark(name) for name in lacking)
    try:
        return str(whole(plain))
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return mark(f"(({text}))")
