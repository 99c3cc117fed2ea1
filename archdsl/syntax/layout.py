"""Expressions and signatures as text: on one line if it fits, else broken where the eye expects it."""

from __future__ import annotations

from collections.abc import Sequence

from archdsl.syntax import ast

WIDTH = 120

# How tightly each kind of expression binds; the rules of the grammar from `expression` down to `postfix`.
LOOSE, OR, UNARY, ATOM, POSTFIX = 0, 1, 9, 11, 12
BINDING = {
    "or": 1,
    "and": 2,
    "not": 3,
    "|": 5,
    "&": 6,
    "+": 7,
    "-": 7,
    "*": 8,
    "/": 8,
    "//": 8,
    "%": 8,
    "**": 10,
    **dict.fromkeys(("==", "!=", "<", "<=", ">", ">="), 4),
}

Entry = ast.Arg | ast.Rule
"""What stands in a list besides expressions."""


def binding(expr: ast.Expr) -> int:
    """How tightly an expression holds together; one that stands where something tighter is asked needs parentheses."""
    match expr:
        case ast.IfElse() | ast.Pipeline():
            return LOOSE
        case ast.Binary(op):
            return BINDING[op]
        case ast.Unary(op):
            return BINDING["not"] if op == "not" else UNARY
        case ast.Name() | ast.Call() | ast.Index():
            return POSTFIX
    return ATOM


def operands(expr: ast.Binary) -> tuple[int, int]:
    """How tight the two sides of a binary operator must be."""
    level = BINDING[expr.op]
    if expr.op == "**":
        return ATOM, UNARY
    if level == BINDING["=="]:
        return level + 1, level + 1
    left = expr.left
    if (
        level == BINDING["*"]
        and isinstance(left, ast.Binary)
        and left.op != expr.op
        and {left.op, expr.op} & {"//", "%"}
    ):
        return level + 1, level + 1  # `(layers // 2) * width`: here the order matters, and few know it
    return level, level + 1


def _key(entry: Entry) -> str:
    """What stands before the value of an argument or a rule."""
    if isinstance(entry, ast.Rule):
        return f'"{entry.pattern}": '
    return f"{entry.name}: " if entry.name else ""


def branch(expr: ast.Expr) -> int:
    """How tight a branch of `if then else` must be: a pipeline is easier to see in parentheses."""
    return LOOSE if isinstance(expr, ast.IfElse) else OR


def flat(expr: ast.Expr | Entry, level: int = LOOSE) -> str:
    """On one line."""
    if isinstance(expr, ast.Arg | ast.Rule):
        return f"{_key(expr)}{flat(expr.value)}"
    if binding(expr) < level:
        return f"({flat(expr)})"
    match expr:
        case ast.Number(text) | ast.Name(text):
            return text
        case ast.String(value):
            return f'"{value}"'
        case ast.Ellipsis():
            return "..."
        case ast.Unary("not", operand):
            return f"not {flat(operand, BINDING['not'])}"
        case ast.Unary(op, operand):
            return f"{op}{flat(operand, UNARY)}"
        case ast.Binary(op, left, right):
            tight_left, tight_right = operands(expr)
            return f"{flat(left, tight_left)} {op} {flat(right, tight_right)}"
        case ast.IfElse(condition, then, otherwise):
            return f"if {flat(condition, OR)} then {flat(then, OR)} else {flat(otherwise, branch(otherwise))}"
        case ast.List(items):
            return f"[{commas(items)}]"
        case ast.Rules(items):
            return f"[{commas(items)}]"
        case ast.Comprehension(element, name, iterable):
            return f"[{flat(element)} for {name} in {flat(iterable)}]"
        case ast.Call(function, args):
            return f"{flat(function, POSTFIX)}({commas(args)})"
        case ast.Slice(low, high):
            return f"{flat(low) if low else ''}:{flat(high) if high else ''}"
        case ast.Index(value, items):
            return f"{flat(value, POSTFIX)}[{commas(items)}]"
        case ast.As(value, name):
            return f"{flat(value, POSTFIX)} as {name}"
        case _:
            assert isinstance(expr, ast.Pipeline), expr
            return " -> ".join([flat(expr.head, ATOM), *map(stage, expr.stages)])


def stage(expr: ast.Expr) -> str:
    """A stage of a pipeline, on one line."""
    return flat(expr, LOOSE if isinstance(expr, ast.As) else POSTFIX)


def commas(items: Sequence[ast.Expr | Entry]) -> str:
    """On one line, separated by commas."""
    return ", ".join(map(flat, items))


# --- signatures -----------------------------------------------------------------------------------------------------


def tensor_type(type_: ast.TensorType) -> str:
    """`token[batch, time]`."""
    return f"{type_.kind or ''}[{commas(type_.dims)}]"


def hyper(param: ast.Hyper) -> str:
    """`hidden: size = 4 * width`."""
    kind = f": {param.kind}" if param.kind else ""
    return f"{param.name}{kind}{f' = {flat(param.default)}' if param.default else ''}"


def tensor_param(param: ast.TensorParam) -> str:
    """`x: [..., width]`."""
    return f"{param.name}: {tensor_type(param.type)}{f' = {flat(param.default)}' if param.default else ''}"


def results(header: ast.Header) -> str:
    """` -> [batch, time, width]`, or nothing."""
    if header.results is None:
        return ""
    if len(header.results) == 1 and header.results[0].name is None:
        return f" -> {tensor_type(header.results[0].type)}"
    return f" -> ({', '.join(f'{r.name}: {tensor_type(r.type)}' for r in header.results)})"


def signature(start: str, header: ast.Header, tail: int) -> str:
    """The lists and results behind `block name`; `tail` characters follow on the last line."""
    lists = []
    if header.hypers is not None:
        lists.append([hyper(h) for h in header.hypers])
    if header.tensors is not None:
        lists.append([tensor_param(t) for t in header.tensors])
    line = start + "".join(f"({', '.join(entries)})" for entries in lists) + results(header)
    if len(line) + tail <= WIDTH:
        return line
    lines: list[str] = []
    for entries in lists:  # one list below the other, the entries of each below its first
        lines.append((start if not lines else " " * len(start)) + "(")
        for i, entry in enumerate(entries):
            word = entry + (")" if i == len(entries) - 1 else ",")
            if i and len(lines[-1]) + 1 + len(word) > WIDTH:
                lines.append(" " * (len(start) + 1) + word)
            else:
                lines[-1] += f" {word}" if i else word
    lines = lines or [start]
    result = results(header)
    if result and len(lines[-1]) + len(result) + tail > WIDTH:
        lines.append(" " * len(start) + result)
    else:
        lines[-1] += result
    return "\n".join(lines)


# --- expressions on several lines -------------------------------------------------------------------------------------


class Layout:
    """Breaks the expressions of one statement, which is indented by `indent`."""

    def __init__(self, indent: int) -> None:
        self.indent = indent

    def lay(self, expr: ast.Expr | Entry, level: int, column: int, tail: int) -> str:
        """The expression, beginning in this column; `tail` characters follow it on its last line."""
        line = flat(expr, level)
        if column + len(line) + tail <= WIDTH:
            return line
        if isinstance(expr, ast.Arg | ast.Rule):
            start = _key(expr)
            return start + self.lay(expr.value, LOOSE, column + len(start), tail)
        if binding(expr) < level:
            return f"({self.lay(expr, LOOSE, column + 1, tail + 1)})"
        match expr:
            case ast.Call(ast.Call() as function, args) if len(commas(args)) < len(flat(function)) / 2:
                end = f"({commas(args)})"  # the longer list is broken
                return self.lay(function, POSTFIX, column, len(end) + tail) + end
            case ast.Call(function, args) if args:
                head = self.lay(function, POSTFIX, column, 1)
                return head + self._fill("(", args, ")", end_column(column, head), tail, _opens_line(expr, args))
            case ast.Index(value, items):
                head = self.lay(value, POSTFIX, column, 1)
                return head + self._fill("[", items, "]", end_column(column, head), tail, False)
            case ast.List(items) | ast.Rules(items) if items:
                return self._fill("[", items, "]", column, tail, _opens_line(expr, items))
            case ast.As(value, name):
                end = f" as {name}"
                return self.lay(value, POSTFIX, column, tail + len(end)) + end
            case ast.Unary(op, operand):
                start, tight = ("not ", BINDING["not"]) if op == "not" else (op, UNARY)
                return start + self.lay(operand, tight, column + len(start), tail)
            case ast.Binary():
                return self._chain(expr, column, tail)
            case ast.Pipeline(head_expr, stages):
                return self._pipeline(head_expr, stages, column, tail)
            case ast.IfElse(condition, then, otherwise):
                column = self._margin(column)
                text = f"if {self.lay(condition, OR, column + 3, 0)}"
                if end_column(column, text) + len(f" then {flat(then, OR)}") <= WIDTH:
                    text += f" then {flat(then, OR)}"
                else:
                    text += f"\n{' ' * column}then {self.lay(then, OR, column + 5, 0)}"
                return text + f"\n{' ' * column}else {self.lay(otherwise, branch(otherwise), column + 5, tail)}"
        return line

    def _margin(self, column: int) -> int:
        """Where lines below begin that go on with what begins in that column: beyond the width nothing is aligned."""
        return column if column < WIDTH else self.indent + 4

    def items(self, items: Sequence[ast.Expr | Entry], column: int, tail: int) -> str:
        """A list of entries: as many on a line as fit, the others below the first."""
        text = ""
        margin = self._margin(column)
        for i, item in enumerate(items):
            after = tail if i == len(items) - 1 else 1
            place = end_column(column, text) + (2 if i else 0)
            if i and place + len(flat(item)) + after > WIDTH:
                text += f",\n{' ' * margin}"
                place = margin
            elif i:
                text += ", "
            text += self.lay(item, LOOSE, place, after)
        return text

    def _fill(
        self, opening: str, items: Sequence[ast.Expr | Entry], closing: str, column: int, tail: int, indented: bool
    ) -> str:
        if indented:  # the author ended the line behind the bracket
            inner = self.indent + 2
            return f"{opening}\n{' ' * inner}{self.items(items, inner, tail + 1)}{closing}"
        return opening + self.items(items, column + 1, tail + 1) + closing

    def _chain(self, expr: ast.Binary, column: int, tail: int) -> str:
        """Operators of one kind: each operand on its line, below the first, the operator before it."""
        left, right = operands(expr)
        parts = [(expr.op, expr.right, right)]
        rest = expr.left
        while isinstance(rest, ast.Binary) and BINDING[rest.op] == BINDING[expr.op] == left:
            left, right = operands(rest)
            parts.append((rest.op, rest.right, right))
            rest = rest.left
        longest = max(len(op) for op, _, _ in parts)
        margin = self._margin(column - longest - 1 if column - longest - 1 > self.indent else column)
        text = self.lay(rest, left, column, 0)
        for i, (op, operand, tight) in enumerate(reversed(parts)):
            after = tail if i == len(parts) - 1 else 0
            text += f"\n{' ' * margin}{op:<{longest}} {self.lay(operand, tight, margin + longest + 1, after)}"
        return text

    def _pipeline(self, head: ast.Expr, stages: Sequence[ast.Expr], column: int, tail: int) -> str:
        """As many stages on a line as fit; a stage that fits on no line is broken where it stands."""
        text = self.lay(head, ATOM, column, 0)
        below = self._margin(column) + 2
        for i, expr in enumerate(stages):
            after = tail if i == len(stages) - 1 else 0
            place, needed = end_column(column, text), len(f" -> {stage(expr)}") + after
            if place + needed > WIDTH and below + needed - 1 <= WIDTH:
                text += f"\n{' ' * below}-> {stage(expr)}"
            else:
                level = LOOSE if isinstance(expr, ast.As) else POSTFIX
                text += f" -> {self.lay(expr, level, place + 4, after)}"
        return text


def end_column(column: int, text: str) -> int:
    """Where a text ends that begins in this column."""
    line = text.rfind("\n")
    return column + len(text) if line < 0 else len(text) - line - 1


def _opens_line(expr: ast.Expr, items: Sequence[ast.Node]) -> bool:
    """Whether the author began a new line before the first entry."""
    text = expr.span.source.text
    start = items[0].span.start
    return "\n" in text[len(text[:start].rstrip()) : start]
