"""Settings that stand under dotted keys: YAML, overrides KEY=VALUE, or JSON; read against a launcher's table.

PyYAML is imported here, when a YAML text has to be read, and nowhere else: it is pure data (`SafeLoader`), small, and
the parser that the frameworks themselves use, so that `on`, `1e-5` and duplicate keys mean what they mean there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from gpucalc.core.errors import DataError, suggestion
from gpucalc.launch.flags import Flag, flags
from gpucalc.launch.read.shell.command import Command, find_command, near_flag
from gpucalc.launch.read.shell.script import missing, read_script, shown

MOST_KEYS = 20_000
DEEPEST = 40


def parse_yaml(text: str, what: str) -> Any:
    """A YAML text as data. Raises DataError with the line for what is not YAML, or has a key twice."""
    import yaml

    class Strict(yaml.SafeLoader):
        """The safe loader, which by itself lets the last of two equal keys win."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            """A mapping whose keys are all different, but for merges."""
            seen = set()
            for key, _ in node.value:
                name = key.value if isinstance(key, yaml.ScalarNode) else None
                if name in seen and name != "<<":
                    raise DataError(f"the key {name!r} stands twice in one block (line {key.start_mark.line + 1})")
                seen.add(name)
            found: dict[Any, Any] = super().construct_mapping(node, deep=deep)
            return found

    lacking = list(dict.fromkeys(missing(text)))
    if lacking:
        raise DataError(f"the {what} needs {', '.join(lacking)}, which is not set in the text")
    try:
        return yaml.load(text, Loader=Strict)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: {getattr(error, 'problem', '')}" if mark else "not YAML"
        raise DataError(f"the {what} is not YAML ({where})") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"the {what} is not YAML ({str(error).splitlines()[0][:80]})") from None


def flat(value: Mapping[Any, Any], prefix: str = "", depth: int = 0) -> dict[str, Any]:
    """Nested mappings under dotted keys, lists of mappings as `name[].key`; other lists stay values.

    Raises DataError for what no settings file is.

    >>> flat({"a": {"b": 1, "c": [2]}, "d": None, "e": [{"f": 3}]})
    {'a.b': 1, 'a.c': [2], 'd': None, 'e[].f': 3}
    """
    found: dict[str, Any] = {}
    if depth > DEEPEST:
        raise DataError("the settings are nested too deeply")
    for name, item in value.items():
        inner = [part for part in item if isinstance(part, Mapping)] if isinstance(item, list) else []
        if isinstance(item, Mapping) and item:
            found |= flat(item, f"{prefix}{name}.", depth + 1)
        elif inner:
            # Of a list of blocks the first value of a key counts; what differs later is seldom a size.
            for part in reversed(inner):
                found |= flat(part, f"{prefix}{name}[].", depth + 1)
        else:
            found[f"{prefix}{name}"] = item
        if len(found) > MOST_KEYS:
            raise DataError(f"the settings have more than {MOST_KEYS:,} keys")
    return found


def typed(word: str) -> Any:
    """The value of an override as YAML reads a scalar: a number, true, null, or text.

    >>> typed("8"), typed("True"), typed("null"), typed("1e-5"), typed("bf16_mixed"), typed("'a'")
    (8, True, None, '1e-5', 'bf16_mixed', 'a')
    """
    plain = word.strip()
    if len(plain) > 1 and plain[0] == plain[-1] and plain[0] in "'\"":
        return plain[1:-1]
    known = {"true": True, "false": False, "null": None, "none": None, "~": None}
    if plain.casefold() in known:
        return known[plain.casefold()]
    if re.fullmatch(r"[-+]?\d{1,15}", plain):
        return int(plain)
    if re.fullmatch(r"[-+]?(\d{1,15}\.\d{0,15}|\.\d{1,15})([eE][-+]\d{1,2})?", plain):
        return float(plain)
    return plain


def overrides(words: Iterable[str]) -> dict[str, Any]:
    """KEY=VALUE words of a command line, Hydra's `+KEY=VALUE` and `++KEY=VALUE` too.

    >>> overrides(["a.b=2", "++c=true", "--flag", "x"])
    {'a.b': 2, 'c': True}
    """
    found: dict[str, Any] = {}
    for word in words:
        key = re.match(r"\+{0,2}([A-Za-z_][\w./@-]*)=(.*)", word, re.DOTALL)
        if key:
            lacking = missing(key[2])
            if lacking:
                found[key[1]] = Missing(shown(key[2]), lacking)
            else:
                found[key[1]] = typed(key[2])
    return found


class Missing:
    """A value that hangs on a variable which the text does not set."""

    def __init__(self, text: str, names: list[str]) -> None:
        self.text, self.names = text, names


def yaml_source(
    text: str, signs: frozenset[str], who: str, given: Mapping[str, Any], starts: tuple[str, ...] = ()
) -> tuple[dict[str, Any], Command | None]:
    """The mapping of a YAML text; or the one that a script writes in a here-document, with the command that starts.

    signs: keys of the top level of which one must stand. starts: options by which the starting command is known.
    """
    document = None
    try:
        document = parse_yaml(text, f"{who} file")
    except DataError:
        if not re.search(r"<<|\b(srun|accelerate|python3?|torchrun|deepspeed|axolotl|trl)\b", text):
            raise
    if isinstance(document, Mapping) and signs & {str(name) for name in document}:
        return dict(document), None
    script = read_script(text)
    nested = [
        d for d in script.documents if any(re.search(rf"^{re.escape(sign)}\s*:", d, re.MULTILINE) for sign in signs)
    ]
    if not nested:
        near = near_flag(next(iter(document), ""), signs) if isinstance(document, Mapping) and document else ""
        raise DataError(f"no settings of {who} stand in the text" + (f"; did you mean {near}?" if near else ""))
    inner = parse_yaml(nested[0], f"{who} file")
    if not isinstance(inner, Mapping):
        raise DataError(f"no settings of {who} stand in the text")
    try:
        command = find_command(text, starts, who, given) if starts else None
    except DataError:
        command = None
    return dict(inner), command


class Settings:
    """Values by key, with everything that is wrong or not modelled collected; it knows which keys were asked for."""

    def __init__(self, values: Mapping[str, Any], table: str, who: str, given: Mapping[str, Any]) -> None:
        self.values, self.who, self.given = dict(values), who, given
        self.table: Mapping[str, Flag] = flags(table)
        self._blocks = sorted((name for name in self.table if "*" in name), key=len, reverse=True)
        self.problems: list[str] = []
        self.notes: list[str] = []

    def get(self, key: str, default: Any = None) -> Any:
        """The raw value; `default` where it is absent or null."""
        value = self.values.get(key)
        if isinstance(value, Missing):
            self.problems.append(
                f"{key} is {value.text}, and {', '.join(value.names)} is not set in the text; write its value above"
            )
            return default
        return default if value is None else value

    def integer(self, key: str, default: Any = None, least: int = 1) -> Any:
        """A whole number of at least `least`; the default where it is absent."""
        value = self.get(key)
        if value is None:
            return default
        if isinstance(value, str) and re.fullmatch(r"-?\d{1,12}", value):
            value = int(value)
        whole = isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1
        if not whole or not least <= value < 1e12:
            self.problems.append(f"{key} is {str(value)[:40]!r}, expected a whole number of {least} or more")
            return default
        return int(value)

    def flag(self, key: str, default: Any = False) -> Any:
        """true or false; the default where it is absent."""
        value = self.get(key)
        if value is None:
            return default
        if isinstance(value, bool):
            return value
        word = str(value).casefold()
        if word in {"true", "yes", "1", "on"}:
            return True
        if word in {"false", "no", "0", "off", "none"}:
            return False
        self.problems.append(f"{key} is {str(value)[:40]!r}, expected true or false")
        return default

    def word(self, key: str, choices: Iterable[str], default: Any = None) -> Any:
        """One of a few words, case forgiven; the default where it is absent."""
        value = self.get(key)
        if value is None:
            return default
        known = {choice.casefold(): choice for choice in choices}
        text = str(value).casefold()
        if text in known:
            return known[text]
        self.problems.append(f"{key} is {str(value)[:40]!r}{suggestion(text, list(known), 1)}")
        return default

    def text(self, key: str, default: str = "") -> str:
        """A text."""
        return str(self.get(key, default))

    def remark(self) -> None:
        """Say of every key what its table says: noted with its direction, refused, or unknown."""
        foreign = []
        for key, value in self.values.items():
            flag = self._entry(key)
            if flag is None:
                near = near_flag(key, self.table)
                foreign.append(key + (f" (did you mean {near}?)" if near else ""))
            elif flag.use == "refused" and value not in {None, False}:
                self.problems.append(flag.remark([_short(value)]).replace(flag.name, key, 1))
            elif flag.use == "noted" and not self._default(flag, value):
                self.notes.append(flag.remark([_short(value)]).replace(flag.name, key, 1))
        if foreign:
            shown_keys = ", ".join(dict.fromkeys(foreign[:20]))
            self.notes.append(f"keys that are not in the list of {self.who} are not read: {shown_keys}")

    def _entry(self, key: str) -> Flag | None:
        """The row of a key; that of the narrowest block (`block.*`) where it has none of its own."""
        if key in self.table:
            return self.table[key]
        return next((self.table[name] for name in self._blocks if fnmatchcase(key, name)), None)

    @staticmethod
    def _default(flag: Flag, value: Any) -> bool:
        if value == "auto":  # filled in by the program that reads the settings
            return True
        if value is None or value is False or value in ("", [], {}, "none", "no"):
            return flag.default in {"", "false", "False", "none", "no", "null", "None", "not given"} or value is None
        if isinstance(value, int | float) and not isinstance(value, bool) and not value and not flag.default:
            return True  # a nought where nothing is the default
        return str(value).casefold() == flag.default.casefold()

    def finish(self, cells: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """The stated cells and the remarks; DataError with everything that is wrong."""
        self.remark()
        if self.problems:
            raise DataError(*dict.fromkeys(self.problems))
        return {name: value for name, value in cells.items() if value is not None}, list(dict.fromkeys(self.notes))

    def beside(self, cells: Mapping[str, Any], names: Iterable[str]) -> None:
        """Say which cells a file cannot hold and nobody stated."""
        lacking = [n for n in names if cells.get(n) is None and self.given.get(n) is None]
        if lacking:
            self.notes.append(f"not in the file, so yours to state with --set: {', '.join(lacking)}")


def _short(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= 40 else text[:37] + "…"


def world_of(command: Command | None, given: Mapping[str, Any], settings: Settings) -> tuple[int | None, int | None]:
    """(GPUs, GPUs of a node) of the command that starts a settings file, or as given."""
    if command is None:
        return given.get("n_gpus"), None
    lacking: list[str] = []
    world, per_node = command.world(given, lacking)
    settings.problems += lacking
    return world, per_node
