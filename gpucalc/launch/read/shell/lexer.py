"""The words of shell text: quotes, continuations, arrays, here-documents; expansions are kept for later."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gpucalc.core.errors import DataError

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass
class Part:
    """A piece of a word: literal text, or an expression to expand."""

    text: str
    expression: bool = False
    quoted: bool = False


Word = list[Part]
Statement = tuple[list[Word], dict[str, tuple[bool, list[Word]]]]


class Lexer:
    """Splits a text into statements; a word keeps its expansions for later, when its variables are known."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.documents: list[tuple[str, bool]] = []  # here-documents, and whether they stand as they are
        self.delimiters: list[tuple[str, bool, bool]] = []

    def peek(self, offset: int = 0) -> str:
        """The character at the place of reading; empty at the end."""
        place = self.at + offset
        return self.text[place] if place < len(self.text) else ""

    def statements(self) -> Iterator[Statement]:
        """(words, arrays) of each statement, in order."""
        words: list[Word] = []
        arrays: dict[str, tuple[bool, list[Word]]] = {}
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

    def _array_items(self) -> list[Word]:
        items: list[Word] = []
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

    def _redirection(self, words: list[Word]) -> None:
        if self.text.startswith("<<", self.at) and not self.text.startswith("<<<", self.at):
            found = re.compile(r"<<(-?)[ \t]*(['\"\\]?)([\w.-]+)\2?").match(self.text, self.at)
            if found:
                self.at = found.end()
                self.delimiters.append((found[3], bool(found[1]), bool(found[2])))
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
        for delimiter, tabs, quoted in self.delimiters:
            lines = []
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                line = self.text[self.at : end]
                self.at = min(end + 1, len(self.text))
                line = line.lstrip("\t") if tabs else line
                if line == delimiter:
                    break
                lines.append(line)
            self.documents.append(("\n".join(lines) + "\n", quoted))
        self.delimiters = []

    def parts(self) -> Word:
        """One word up to an unquoted blank or operator."""
        word: Word = []
        while self.at < len(self.text):
            char = self.peek()
            if char in " \t\n;&|()<>":
                break
            if char == "\\":
                if self.peek(1) == "\n":
                    self.at += 2
                    break
                word.append(Part(self.peek(1), quoted=True))
                self.at += 2
            elif char == "'":
                end = self.text.find("'", self.at + 1)
                if end < 0:
                    raise DataError("the script ends inside a quotation: a ' is missing")
                word.append(Part(self.text[self.at + 1 : end], quoted=True))
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
                word.append(Part(self.text[self.at : end]))
                self.at = end
        return word

    def everything(self) -> Word:
        """All of the text as one word, blanks and operators included."""
        word: Word = []
        while self.at < len(self.text):
            before = self.at
            word += self.parts()
            if self.at == before:
                word.append(Part(self.peek()))
                self.at += 1
        return word

    def document(self) -> Word:
        """All of the text as a here-document is expanded: quotes are ordinary, dollars and backquotes are not."""
        word: Word = []
        while self.at < len(self.text):
            char = self.peek()
            if char == "\\" and self.peek(1) and self.peek(1) in "\\$`\n":
                word.append(Part("" if self.peek(1) == "\n" else self.peek(1), quoted=True))
                self.at += 2
            elif char in "$`":
                word.append(self._expression(quoted=True))
            else:
                end = self.at + 1
                while end < len(self.text) and self.text[end] not in "\\$`":
                    end += 1
                word.append(Part(self.text[self.at : end], quoted=True))
                self.at = end
        return word

    def _double_quoted(self, word: Word) -> None:
        word.append(Part("", quoted=True))
        while self.at < len(self.text):
            char = self.peek()
            if char == '"':
                self.at += 1
                return
            if char == "\\" and self.peek(1) and self.peek(1) in '"\\$`\n':
                word.append(Part("" if self.peek(1) == "\n" else self.peek(1), quoted=True))
                self.at += 2
            elif char in "$`":
                word.append(self._expression(quoted=True))
            else:
                end = self.at + 1
                while end < len(self.text) and self.text[end] not in '"\\$`':
                    end += 1
                word.append(Part(self.text[self.at : end], quoted=True))
                self.at = end
        raise DataError('the script ends inside a quotation: a " is missing')

    def _expression(self, quoted: bool) -> Part:
        """What follows a $ or a backquote, unexpanded: NAME, {…} without its braces, (…) or ((…))."""
        text, start = self.text, self.at
        if self.peek() == "`":
            end = text.find("`", start + 1)
            self.at = len(text) if end < 0 else end + 1
            return Part(f"({text[start + 1 : self.at - 1]})", expression=True, quoted=quoted)
        opening = self.peek(1)
        if opening in {"{", "("}:
            self.at = self._closing(start + 1)
            inner = text[start + 1 : self.at]
            return Part(inner[1:-1] if opening == "{" else inner, expression=True, quoted=quoted)
        name = NAME.match(text, start + 1)
        if name:
            self.at = name.end()
            return Part(name[0], expression=True, quoted=quoted)
        if opening and opening in "@*#?$!-0123456789":
            self.at = start + 2
            return Part(opening, expression=True, quoted=quoted)
        self.at = start + 1
        return Part("$", quoted=True)

    def _closing(self, at: int) -> int:
        """The place after the bracket that closes the one at `at`."""
        pairs = {"{": "}", "(": ")"}
        opening, depth = self.text[at], 0
        for place in range(at, len(self.text)):
            depth += (self.text[place] == opening) - (self.text[place] == pairs[opening])
            if depth == 0:
                return place + 1
        raise DataError(f"the script ends inside ${opening}: a closing {pairs[opening]} is missing")


_FUNCTION = re.compile(
    r"^([ \t]*)(?:function[ \t]+([\w-]+)[ \t]*(?:\(\))?|([\w-]+)[ \t]*\(\))\s*\{[ \t]*$", re.MULTILINE
)


def without_functions(text: str, functions: dict[str, str]) -> str:
    """The text without the definitions of functions, whose bodies go to `functions`.

    A body ends at the brace that stands alone with the indentation of the name; a definition written otherwise stays,
    and its body is read where it stands.

    >>> found = {}
    >>> without_functions("run() {\\n  go $1\\n}\\nrun 8\\n", found), found
    ('\\nrun 8\\n', {'run': '\\n  go $1\\n'})
    """
    kept, place = [], 0
    for head in _FUNCTION.finditer(text):
        end = re.compile(rf"^{head[1]}\}}", re.MULTILINE).search(text, head.end())
        if head.start() < place or end is None:
            continue
        functions[head[2] or head[3]] = text[head.end() : end.start()]
        kept.append(text[place : head.start()])
        place = end.end()
    return "".join([*kept, text[place:]])
