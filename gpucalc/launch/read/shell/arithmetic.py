"""Whole-number arithmetic and comparisons of a shell, once everything in them is known."""

from __future__ import annotations

import ast
import re


def whole(text: str) -> int:
    """The value of an expression of whole numbers; ValueError or SyntaxError for any other.

    >>> whole("2 * (3 + 4) / 4")
    3
    """
    return _whole(ast.parse(text.strip().replace("/", "//"), mode="eval").body)


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


def compared(fields: list[str]) -> bool | None:
    """Whether the words of a test hold; None for one that is not known here.

    >>> compared(["8b", "==", "8b"]), compared(["8", "-gt", "9"]), compared(["-f", "x"])
    (True, False, None)
    """
    match fields:
        case ["-z", word]:
            return not word
        case ["-n", word]:
            return bool(word)
        case [left, "=" | "==" | "!=" as operator, right] if not re.search(r"[*?\[]", right):
            return (left == right) == (operator != "!=")
        case [left, operator, right] if re.fullmatch(r"-?\d{1,15}", left) and re.fullmatch(r"-?\d{1,15}", right):
            a, b = int(left), int(right)
            known = {"-eq": a == b, "-ne": a != b, "-gt": a > b, "-ge": a >= b, "-lt": a < b, "-le": a <= b}
            return known.get(operator)
    return None
