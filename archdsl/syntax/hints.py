"""What to say about a syntax error: which words could have stood here, and what was probably meant.

Only imported when there is one. A `Mistake` sees the parser's stacks at the word that does not fit; each `_…` method
recognises one kind of mistake, the most telling first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from archdsl.diagnostics import Diagnostic, Label
from archdsl.diagnostics.source import Source, Span
from archdsl.syntax import ast
from archdsl.syntax.build import Token, reserved
from archdsl.syntax.parse import DECLARATIONS, Many, tokens
from archdsl.syntax.parser_tables import END, Tables

EXPRESSIONS = ast.Expr.__args__
BODIED = ("BLOCK", "MODEL", "IF", "ELSE", "FOR", "SCAN")
# At the start of a line, or before two words: `a // b` divides.
COMMENT = re.compile(r"(?:^\s*+|\s(?=(?://|/\*|--|<!--)\W*+[A-Za-z]\w*+[\s,.]++[A-Za-z]))(//|/\*|--|<!--)(?=\s|\w|$)")
PARTNER = {"(": ")", "[": "]", "{": "}"}
OPERATORS = frozenset(["|", "&", "+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", ">", ">=", "and", "or"])
COMPARISONS = frozenset(["==", "!=", "<", "<=", ">", ">="])

# What an acceptable terminal is called in words; those of one name are said once, in this order.
GROUPS: tuple[tuple[str, frozenset[str]], ...] = (
    ("a declaration (`block`, `model`, `let`, …)", frozenset(["import", "let", "inline", "block", "model", "variant"])),
    ("a statement", frozenset(["let", "param", "buffer", "loss", "for", "if", "assert", "assume", "return", "emit"])),
    ("an expression", frozenset(["NUMBER", "DOTTED", "STRING", "(", "[", "-", "~", "not", "if"])),
    ("an operator", OPERATORS),
)

# Characters of other languages or of word processors, and what they are here.
FOREIGN = {
    "'": 'strings stand in double quotes: `"why"`',
    "“": 'strings stand in straight double quotes: `"why"`',
    "”": 'strings stand in straight double quotes: `"why"`',
    ";": "statements need no `;`: the next one may simply follow",
    "!": "write `not`",
    "^": "the power is written `**`",
    "@": "the matrix product is written `matmul(a, b)`",
    "?": "a choice is written `if condition then a else b`",
    ".": "any axes are written `...`; a number starts with a digit: `0.5`",
    "…": "any axes are written with three dots: `...`",
    "→": "the arrow is written `->`",
    "⇒": "the arrow is written `->`",
    "×": "the product is written `*`",
    "·": "the product is written `*`",
    "÷": "the quotient is written `/`",
    "−": "the minus is written `-`",
    "–": "the minus is written `-`",
    "≤": "write `<=`",
    "≥": "write `>=`",
    "≠": "write `!=`",
    "∧": "write `and` for conditions, `&` for masks",
    "∨": "write `or` for conditions, `|` for masks",
    "¬": "write `not` for conditions, `~` for masks",
    "√": "write `sqrt(…)`",
    "\u00a0": "this is a no-break space: write a plain one",
}

# Words of other languages where a statement is expected.
WORDS = {
    "elif": "write `else if`",
    "elsif": "write `else if`",
    "def": "a part is declared by `block name(…)(…) { … }`",
    "class": "a part is declared by `block name(…)(…) { … }`",
    "fn": "a part is declared by `block name(…)(…) { … }`",
    "module": "a part is declared by `block name(…)(…) { … }`",
    "layer": "a part is declared by `block name(…)(…) { … }`",
    "const": "a constant is declared by `let name = …`",
    "var": "a constant is declared by `let name = …`",
    "from": 'a file is imported by `import "file.arch"`',
    "include": 'a file is imported by `import "file.arch"`',
    "use": 'a file is imported by `import "file.arch"`',
    "network": "what is compiled is declared by `model name { … }`",
    "while": "a repetition is a `for` over a list or a number, or a `scan` over time",
}

OTHER_ARROWS = {
    "|>": "a tensor is handed on by `->`",
    ">>": "a tensor is handed on by `->`",
    "=>": "the arrow is written `->`",
    "==": "equality is tested by `==`, and a slot is given by `:`",
}


class Mistake:
    """The word that does not fit, and everything the parser knew when it met it."""

    def __init__(
        self,
        table: Tables,
        source: Source,
        states: Sequence[int],
        values: Sequence[Any],
        begins: Sequence[int],
        token: Token,
    ) -> None:
        self.table = table
        self.source = source
        self.states = states
        self.values = values
        self.begins = begins
        self.token = token
        following = tokens(table, source.text, token.end)
        self.next = next(following, token) if token.type != END else token
        self.previous: Token | None = values[-1] if values and isinstance(values[-1], Token) else None
        self.opener = self._innermost()

    def explain(self) -> Diagnostic:
        """The one diagnostic for this mistake."""
        for recognise in (
            self._word,
            self._comment,
            self._reserved,
            self._mixed_pipeline,
            self._stage,
            self._as,
            self._lists,
            self._bracket,
            self._slice_step,
            self._argument,
            self._default,
            self._define,
            self._python_if,
            self._header,
            self._braces,
            self._product,
            self._missing_colon,
            self._bare_expression,
        ):
            found = recognise()
            if found is not None:
                return found
        return self._unexpected()

    # --- what the parser could have taken -------------------------------------------------------------------------

    def accepts(self, *terminals: str, back: int = 0) -> bool:
        """Whether these terminals could have come next (after taking back the last words)."""
        shifts, reduces, rules = self.table.shifts, self.table.reduces, self.table.rules
        states = list(self.states[: len(self.states) - back])
        for terminal in terminals:
            while (target := shifts[states[-1]].get(terminal)) is None:
                number = reduces[states[-1]].get(terminal)
                if number is None:
                    return terminal == END and len(states) == 2
                if rules[number].length:
                    del states[-rules[number].length :]
                states.append(shifts[states[-1]][rules[number].name])
            states.append(target)
        return True

    def _expected(self) -> list[str]:
        """In words, what could have stood here."""
        state = self.states[-1]
        candidates = {*self.table.shifts[state], *self.table.reduces[state]} - {END}
        texts = self.table.texts
        words = {texts.get(t, t) for t in candidates if (t.isupper() or t.startswith("__ANON")) and self.accepts(t)}
        if len(words) > 3 and words & {")", "]", "}", ",", "{", "then", "else", "for", "in"}:
            words -= OPERATORS | {"->", "as"}  # how the value before may go on goes without saying
            if "(" in words and "NUMBER" not in words:
                words -= {"(", "[", ":"}
        said = []
        if {"let", "NAME"} <= words and self.accepts("NAME", self.table.fixed[":"]) and "import" not in words:
            said.append("a slot")
        for name, members in GROUPS:
            if len(words & members) >= 4:
                said.append(name)
                words -= members | {"NAME", "DOTTED"}
        if "NAME" in words:
            said.append("a name")
        said += [f"`{word}`" for word in sorted(words - {"NAME", "DOTTED", "NUMBER", "STRING"})]
        if "STRING" in words:
            said.append("a string")
        if "a declaration (`block`, `model`, `let`, …)" in said:
            said = said[:1]
        if not said and self.accepts(END):
            said.append("the end")
        return said

    # --- places -----------------------------------------------------------------------------------------------------

    def _here(self) -> Span:
        token = self.token
        if token.type == END:  # the end of the last word, not of the file: that line can be shown
            end = max(len(self.source.text[: token.start].rstrip()), 1)
            return Span(self.source, end - 1, end)
        return Span(self.source, token.start, token.end)

    def _span(self, start: int, end: int) -> Span:
        return Span(self.source, start, end)

    def _starts_line(self, token: Token) -> bool:
        line_start = self.source.text.rfind("\n", 0, token.start) + 1
        return not self.source.text[line_start : token.start].strip()

    def _innermost(self) -> Token | None:
        closed = 0  # a closed pair stays on the stack while no acceptable word has ended its rule
        for value in reversed(self.values):
            if isinstance(value, Token) and value.text in PARTNER.values():
                closed += 1
            elif isinstance(value, Token) and value.text in PARTNER:
                if not closed:
                    return value
                closed -= 1
        return None

    def _found(self) -> str:
        token = self.token
        if token.type == END:
            return "the end of the file"
        if token.type in ("NAME", "DOTTED"):
            return f"the name `{token.text}`"
        if token.type == "NUMBER":
            return f"the number `{token.text}`"
        if token.type == "STRING":
            return "a string"
        return f"`{token.text}`"

    def _arrow(self) -> int | None:
        """Where on the stack the last `->` of an unfinished pipeline stands."""
        for i in range(len(self.values) - 1, 0, -1):
            value = self.values[i]
            if isinstance(value, Token):
                if value.text == "->":
                    return i if isinstance(self.values[i - 1], (*EXPRESSIONS, Many)) else None
                if value.text in PARTNER or value.text in ("=", "+=", "then", "else"):
                    return None
        return None

    def _rest(self) -> Iterable[Token]:
        yield self.token
        if self.token.type != END:
            yield from tokens(self.table, self.source.text, self.token.end)

    def _operand_end(self, rest: Iterable[Token], pipeline: bool) -> int:
        """The end of the atom, or of the stages of a pipeline, that these words begin."""
        depth, end = 0, self.token.start
        last = ""
        for token in rest:
            text = token.text
            if token.type in (END, "ERROR") or text == "{":
                break
            if depth == 0 and last and text not in ("(", "["):
                goes_on = text in ("->", "as") if pipeline else False
                if last not in ("->", "as") and not goes_on:
                    break
            depth += (text in ("(", "[")) - (text in (")", "]"))
            if depth < 0:
                break
            end, last = token.end, text
        return end

    # --- the mistakes -----------------------------------------------------------------------------------------------

    def _word(self) -> Diagnostic | None:
        """What is no word of the language at all."""
        token, text = self.token, self.source.text
        if token.type != "ERROR":
            return None
        char = token.text
        line_end = text.find("\n", token.start)
        line_end = len(text) if line_end < 0 else line_end
        if char == '"':
            return Diagnostic(
                "E0106",
                "this string is not closed on its line",
                self._span(token.start, len(text[:line_end].rstrip())),
                help='a string is one line between double quotes: `"why"`',
            )
        end = token.end
        if char.isdigit():
            while end < len(text) and (text[end].isalnum() or text[end] in "._"):
                end += 1
            word = text[token.start : end]
            help_ = _number_help(word)
            return Diagnostic("E0105", f"`{word}` is not a number", self._span(token.start, end), help=help_)
        if char.isalpha():
            while end < len(text) and (text[end].isalnum() or text[end] == "_"):
                end += 1
            word = text[token.start : end]
            help_ = FOREIGN.get(char, "names are made of the letters a-z and A-Z, digits and `_`")
            return Diagnostic("E0105", f"`{word}` is not a name", self._span(token.start, end), help=help_)
        if char == "." and text.startswith("..", token.start):
            end = token.start + 2
        shown = text[token.start : end]
        called = re.compile(r"(?<=[\w)\]])\.([A-Za-z_]\w*)(\()?").match(text, token.start)
        if called is not None:
            span, after = self._span(token.start, called.end(1)), f"write `… -> {called[1]}(…)`"
            help_ = after if called[2] else "the sizes of a tensor are the names in its shape: `[batch, time, width]`"
            message = f"there are no {'methods' if called[2] else 'attributes'}: `{called[0].rstrip('(')}`"
            return Diagnostic("E0105", message, span, help=help_)
        name = f"`{shown}`" if shown.isprintable() and not shown.isspace() else f"the character U+{ord(char):04X}"
        message = f"{name} is no word of the language"
        return Diagnostic("E0105", message, self._span(token.start, end), help=FOREIGN.get(char, ""))

    def _comment(self) -> Diagnostic | None:
        """A comment of another language, on this line or at the end of the one before."""
        token, text = self.token, self.source.text
        before = self.previous if self.previous is not None else None
        above = self.values[-1] if self.values else None
        last = before.start if before is not None else getattr(getattr(above, "span", None), "start", token.start)
        for place in (token.start, last, self._line_before(token.start)):
            start = text.rfind("\n", 0, place) + 1
            line_end = text.find("\n", place)
            line = text[start : len(text) if line_end < 0 else line_end].partition("#")[0]
            found = COMMENT.search(line)
            if found is not None and start + found.start(1) <= token.end:
                span = self._span(start + found.start(1), start + found.end(1))
                return Diagnostic("E0101", f"`{found[1]}` begins no comment", span, help="a comment starts with `#`")
        return None

    def _line_before(self, place: int) -> int:
        """The end of the last line above that holds anything."""
        start = self.source.text.rfind("\n", 0, place) + 1
        return max(len(self.source.text[:start].rstrip()) - 1, 0)

    def _reserved(self) -> Diagnostic | None:
        """A reserved word where a name is meant: as this word, or as the one before."""
        token, previous = self.token, self.previous
        keywords = self.table.keywords
        if token.text in keywords and self.accepts("NAME"):
            if token.text == "block" and self.next.text in ("(", "{") and not self._starts_line(token):
                span = self._span(token.start, token.end)
                help_ = "write it beside the model, `block layer() { … }`, and name it here: `layer`"
                return Diagnostic("E0104", "a block is not written where it is used", span, help=help_)
            # at the start of a line it rather begins a statement, behind one that is not finished
            marks = (":", "=", "+=", ",", ")", "]")
            follows = self.next.text in marks
            if not self._starts_line(token):
                word = self.next.type in ("NAME", "DOTTED", "NUMBER", "STRING") or self.next.text in keywords
                follows = not word or self.next.text in ("in", "as", "then", "else", "for")
            if follows and (self.next.type == END or self.accepts("NAME", self.next.type)):
                return self._is_reserved(token)
        if previous is not None and previous.text in keywords and previous.type != "ERROR":
            as_name = token.text in (":", "=", "+=", ",", ")", "]", "->", "as")
            if as_name and self.accepts("NAME", token.type, back=1):
                return self._is_reserved(previous)
        return None

    def _is_reserved(self, token: Token) -> Diagnostic:
        return reserved(token.text, self._span(token.start, token.end)).diagnostics[0]

    def _mixed_pipeline(self) -> Diagnostic | None:
        """`0.5 * x -> f` and `x -> f + y`."""
        text, token = self.source.text, self.token
        values = self.values
        if token.text == "->" and len(values) > 1 and isinstance(values[-1], EXPRESSIONS):
            bottom = len(values) - 1
            while (
                bottom > 0
                and isinstance(values[bottom - 1], Token)
                and values[bottom - 1].text in {*OPERATORS, "~", "not"}
            ):
                bottom -= 1
                if bottom > 0 and isinstance(values[bottom - 1], EXPRESSIONS):
                    bottom -= 1
            if bottom == len(values) - 1:
                return None
            start, operand = self.begins[bottom], self.begins[-1]
            end = self._operand_end(self._rest(), pipeline=True)
            left = text[start:operand]
            whole, stages = text[start : token.start].rstrip(), text[token.start : end]
            part, all_ = f"{left}({text[operand:end]})", f"({whole}) {stages}"
            if isinstance(values[bottom], ast.Number) or isinstance(values[-1], ast.Number):
                # `1 - x -> sigmoid`: a number is computed with before, and nobody pipes one.
                note = f"if only `{_one_line(text[operand : token.start])}` is to be piped: `{_one_line(part)}`"
                return self._mixed(start, end, all_, [note] if not isinstance(values[-1], ast.Number) else [])
            note = f"if all of `{_one_line(whole)}` is to be piped: `{_one_line(all_)}`"
            return self._mixed(start, end, part, [note])
        arrow = self._arrow()
        if token.text in OPERATORS and arrow is not None and arrow < len(values) - 1:
            head = arrow - 1
            if isinstance(values[head], Many):
                head -= 1
            start, stop = self.begins[head], len(text[: token.start].rstrip())
            rest = iter(self._rest())
            operator = next(rest)
            end = max(self._operand_end(rest, pipeline=False), operator.end)
            return self._mixed(start, end, f"({text[start:stop]}) {text[token.start : end]}", [])
        return None

    def _mixed(self, start: int, end: int, proposal: str, notes: list[str]) -> Diagnostic:
        proposal = _one_line(proposal)
        return Diagnostic(
            "E0103",
            "a pipeline is never mixed with an operator without parentheses",
            self._span(start, end),
            notes=tuple(notes) if len(proposal) <= 90 else (),
            help=f"write `{proposal}`" if len(proposal) <= 90 else "put the pipeline in parentheses",
        )

    def _stage(self) -> Diagnostic | None:
        """What stands right of `->` is no block."""
        arrow = self._arrow()
        if arrow is None:
            return None
        after = self.values[arrow + 1 :]
        begins_value = self.token.type in ("NUMBER", "STRING") or self.token.text in ("[", "-", "~", "not", "if")
        if not after and begins_value:
            span = self._here()
        elif len(after) == 1 and isinstance(after[0], EXPRESSIONS) and not isinstance(after[0], (ast.Name, ast.Call)):
            span = self._span(self.begins[arrow + 1], self.token.start)
            span = self._span(span.start, span.start + len(span.text.rstrip()))
        else:
            return None
        return Diagnostic(
            "E0110",
            "a stage of a pipeline must be a block: a name, a call or an element of a list",
            span,
            help="arithmetic stands outside: `0.5 * (x -> f)`",
        )

    def _as(self) -> Diagnostic | None:
        """`as` after something that is no application."""
        if self.token.text != "as" or not self.values:
            return None
        value = self.values[-1]
        grouped = isinstance(value, Token) and value.text == ")"
        if not grouped and not isinstance(value, EXPRESSIONS):
            return None
        name = self.next.text if self.next.type == "NAME" else "name"
        inner = self.values[-2] if grouped else value
        help_ = "write `y = …` to name a value"
        if isinstance(inner, (ast.As, ast.Call, ast.Pipeline)):
            help_ = f"put `as {name}` inside the parentheses, after the application that it names"
        return Diagnostic("E0111", "`as` names an application, and this is none", self._here(), help=help_)

    def _lists(self) -> Diagnostic | None:
        """Hyper-parameters and tensors in one list, or the lists in the wrong order."""
        token = self.token
        if (
            not any(isinstance(v, Token) and v.type in ("BLOCK", "MODEL") for v in self.values[-12:])
            and self.values[:1]
        ):
            header_only = isinstance(self.values[0], Token) and self.values[0].type == "NAME"
            if not header_only:
                return None
        if self.opener is None:
            return self._second_list()
        if self.opener.text != "(":
            return None
        index = next(i for i in range(len(self.values) - 1, -1, -1) if self.values[i] is self.opener)
        entries = [v for value in self.values[index + 1 :] for v in (value if isinstance(value, Many) else [value])]
        hypers = [v for v in entries if isinstance(v, ast.Hyper)]
        tensors = [v for v in entries if isinstance(v, ast.TensorParam)]
        help_ = "write two lists: the static ones first, then the tensors: `block f(heads)(x: [..., width])`"
        if hypers and token.text == "[":
            name = next((v for v in reversed(self.values) if isinstance(v, Token) and v.type == "NAME"), token)
            message = f"`{name.text}` has a shape, but stands in the list of the hyper-parameters"
            span = self._span(name.start, name.end)
            label = Label(hypers[0].span, "this list began with a hyper-parameter")
            return Diagnostic("E0109", message, span, labels=(label,), help=help_)
        if tensors and token.text in (",", ")", "=") and self.accepts(":") is False and self.previous is not None:
            if self.previous.type != "NAME":
                return None
            message = f"`{self.previous.text}` has no shape, but stands in the list of the tensors"
            span = self._span(self.previous.start, self.previous.end)
            label = Label(tensors[0].span, "this list began with a tensor")
            return Diagnostic("E0109", message, span, labels=(label,), help=help_)
        return None

    def _second_list(self) -> Diagnostic | None:
        if self.token.text != "(" or not self.values:
            return None
        if self.previous is None or self.previous.text != ")":
            return None
        entries = [v for value in self.values[-5:] for v in (value if isinstance(value, Many) else [value])]
        if not any(isinstance(v, ast.TensorParam) for v in entries):
            return None
        message = "a signature has at most two lists, and the tensors are the last"
        help_ = "the static list comes first: `block f(heads)(x: [..., width])`"
        return Diagnostic("E0109", message, self._here(), help=help_)

    def _bracket(self) -> Diagnostic | None:
        """A bracket without its partner."""
        token, opener = self.token, self.opener
        if opener is None:
            if token.text not in PARTNER.values():
                return None
            return Diagnostic("E0102", f"this `{token.text}` closes nothing", self._here())
        ends = token.type == END or token.type in DECLARATIONS - {"LET"}
        closes_other = token.text in PARTNER.values() and token.text != PARTNER[opener.text]
        starts_statement = token.text in ("let", "param", "buffer", "loss", "assert", "assume", "return", "emit")
        if self._starts_line(token):
            starts_statement |= token.type == "NAME" and self.next.text in ("=", "+=")
            starts_statement |= token.type == "NAME" and self.next.text == ":" and not self._closed_later()
        starts_statement &= opener.text != "{"
        if not (ends or closes_other or starts_statement):
            return None
        if closes_other and not self.accepts(self.table.fixed[PARTNER[opener.text]]):
            pair = any(isinstance(v, Token) and PARTNER.get(v.text) == token.text for v in self.values)
            if not pair:
                return Diagnostic("E0102", f"this `{token.text}` closes nothing", self._here(), labels=self._inside())
        found = "the file ends here" if token.type == END else f"{self._found()} comes before it is"
        return Diagnostic(
            "E0102",
            f"this `{opener.text}` is never closed",
            self._span(opener.start, opener.end),
            labels=(Label(self._here(), found),),
            help=f"add the missing `{PARTNER[opener.text]}`",
        )

    def _closed_later(self) -> bool:
        """Whether the innermost open bracket finds its partner before the body ends."""
        depth = 0
        for token in self._rest():
            if token.text in ("{", "}") or token.type == END or token.type in DECLARATIONS:
                break
            depth += (token.text in ("(", "[")) - (token.text in (")", "]"))
            if depth < 0:
                return True
        return False

    def _inside(self) -> tuple[Label, ...]:
        if self.opener is None or self.opener.text == "{":
            return ()
        return (Label(self._span(self.opener.start, self.opener.end), f"inside this `{self.opener.text}`"),)

    def _slice_step(self) -> Diagnostic | None:
        if self.token.text != ":" or self.opener is None or self.opener.text != "[":
            return None
        if any(isinstance(v, Token) and v.text == ":" for v in self.values[-2:]) or isinstance(
            self.values[-1], ast.Slice
        ):
            help_ = "a slice is `low:high`; `every(4)` takes every fourth of its positions: `x[:, 0:64] -> every(4)`"
            return Diagnostic("E0101", "a slice has no step", self._here(), help=help_)
        return None

    def _argument(self) -> Diagnostic | None:
        """`f(heads = 12)`."""
        if self.token.text != "=" or self.opener is None or self.opener.text != "(" or not self.values:
            return None
        name = self.source.text[self.begins[-1] : self.token.start].strip()
        if not name.isidentifier():
            return None
        value = self.next.text if self.next.type in ("NAME", "NUMBER", "STRING") else "…"
        return Diagnostic(
            "E0101",
            "an argument is given with `:`, not with `=`",
            self._here(),
            labels=self._inside(),
            help=f"write `{name}: {value}`",
        )

    def _default(self) -> Diagnostic | None:
        """`block f(heads: 12)`."""
        if self.token.type not in ("NUMBER", "STRING") or self.opener is None or self.opener.text != "(":
            return None
        if len(self.values) < 2 or self.previous is None or self.previous.text != ":" or not self.accepts("NAME"):
            return None
        name = self.values[-2]
        assert isinstance(name, Token), "what has a type is named"
        help_ = f"write `{name.text} = {self.token.text}`"
        return Diagnostic("E0101", "a default value is given with `=`, not with `:`", self._here(), help=help_)

    def _define(self) -> Diagnostic | None:
        """`h := f(x)`, and `h: [batch, width] = f(x)`."""
        if self.token.text != "=" or self.opener is None or self.opener.text != "{":
            return None
        if self.previous is not None and self.previous.text == ":" and self.previous.end == self.token.start:
            span = self._span(self.previous.start, self.token.end)
            help_ = "a slot is given by `:`, a tensor is bound by `=`"
            return Diagnostic("E0101", "there is no `:=`", span, help=help_)
        start = self.source.text.rfind("\n", 0, self.token.start) + 1
        shaped = re.fullmatch(r"\s*(\w+)\s*:\s*(\[[^\]\n]*\])\s*", self.source.text[start : self.token.start])
        if shaped is not None:
            help_ = f"write `{shaped[1]} = … : {shaped[2]}`"
            return Diagnostic("E0101", "a shape stands behind the value that has it", self._here(), help=help_)
        return None

    def _python_if(self) -> Diagnostic | None:
        """`a if c else b`."""
        if self.token.type != "IF" or not self.values or not isinstance(self.values[-1], EXPRESSIONS):
            return None
        if self.accepts("RETURN") or self._starts_line(self.token):
            return None
        value = _one_line(self.source.text[self.begins[-1] : self.token.start].strip())
        rest = re.match(r"if\s+([^\n]+?)\s+else\s+([^\s,)]+)", self.source.text[self.token.start :])
        help_ = f"write `if {rest[1]} then {value} else {rest[2]}`" if rest else "write `if condition then a else b`"
        return Diagnostic("E0101", "the condition of a choice stands first", self._here(), help=help_)

    def _header(self) -> Diagnostic | None:
        """`block layer:`, `block layer(…) => […]`, and a body without its brace."""
        if not self.accepts("LBRACE"):
            return None
        what = next((v for v in reversed(self.values) if isinstance(v, Token) and v.type in BODIED), None)
        if what is None and not any(isinstance(v, ast.Header | tuple) for v in self.values[-1:]):
            return None
        word = what.text if what is not None else "block"
        help_ = f"a body stands in braces: `{word} … {{ … }}`"
        if self.token.text == ":":
            return Diagnostic("E0101", "a body begins with `{`, not with `:`", self._here(), help=help_)
        if self._begins_statement():
            message = f"this body has no `{{`: {self._found()} comes before it"
            return Diagnostic("E0101", message, self._here(), help=help_)
        return None

    def _braces(self) -> Diagnostic | None:
        """`{ … }` where a value is expected, or behind the name of a slot."""
        token, previous = self.token, self.previous
        if token.text != "{" or self.opener is None:
            return None
        if self.accepts("NAME"):
            body = self.source.text[token.end :]
            repeated = previous is not None and previous.text == "*"
            if self.opener.text == "[" or repeated or re.match(r"\s*(?:\w+|\"\w+\")\s*:", body) is None:
                help_ = "write it beside the model, `block layer { … }`, and name it here: `layer`"
                return Diagnostic("E0104", "a block is not written where it is used", self._here(), help=help_)
            help_ = "options stand in parentheses behind a name: `rope(theta: 10_000)`"
            return Diagnostic("E0101", "no value stands in braces", self._here(), help=help_, labels=self._inside())
        slot = previous is not None and previous.type == "NAME" and self._starts_line(previous)
        if previous is None or not slot or self.opener.text != "{" or not self.accepts("RETURN", back=1):
            return None
        help_ = f"write `{previous.text}: name(option: …)`, or declare `block {previous.text} {{ … }}` beside this one"
        span = self._span(previous.start, token.end)
        return Diagnostic("E0101", "a slot has no body", span, help=help_)

    def _begins_statement(self) -> bool:
        return self.token.type == "NAME" and self.next.text in (":", "=", "+=", ",")

    def _product(self) -> Diagnostic | None:
        """`2 layer`, `4 width` and `2 x layer`."""
        token = self.token
        before = self.values[-1] if self.values else None
        names = [token]
        if isinstance(before, Token) and before.type == "NAME" and len(self.values) > 1:
            # In a body the name was taken for the next slot.
            names, before = [before], self.values[-2]
            if self._starts_line(names[0]):
                return None
        name = names[0]
        if isinstance(before, Many) and before:
            before = before[-1]
        if isinstance(before, ast.Slot | ast.Let | ast.Assign):
            before = before.value
        while isinstance(before, ast.Binary):
            before = before.right
        is_number = isinstance(before, ast.Number) or (isinstance(before, Token) and before.type == "NUMBER")
        line = self.source.text[self.source.text.rfind("\n", 0, name.start) + 1 : name.start]
        number = re.search(r"[\d_.]+\s*\Z", line)
        if not is_number or name.type not in ("NAME", "DOTTED") or number is None:
            return None
        span = self._span(name.start, name.end)
        sign = re.match(r"x +([A-Za-z_]\w*)", self.source.text[name.start :])
        help_ = f"write `{number[0].strip()} * {sign[1] if sign else name.text}`"
        return Diagnostic("E0101", "a product is written with `*`", span, help=help_)

    def _missing_colon(self) -> Diagnostic | None:
        """`attention mha(heads: 4)`."""
        name, token = self.previous, self.token
        if name is None or name.type != "NAME" or name.text in WORDS:
            return None
        first = self._starts_line(name) or self.source.text[: name.start].rstrip().endswith("{")
        if not first or self._starts_line(token) or not self._begins_value() or not self.accepts("COLON"):
            return None
        if self.opener is None or self.opener.text != "{" or not self.accepts("RETURN", back=1):
            return None
        span = self._span(name.start, token.end)
        line_end = self.source.text.find("\n", token.start)
        rest = self.source.text[token.start : None if line_end < 0 else line_end].partition("#")[0].rstrip(" \r}")
        value = rest if len(rest) <= 60 else "…"
        help_ = f"write `{name.text}: {value}`, or `{name.text} = {value}` in equations"
        return Diagnostic("E0101", f"a `:` or `=` is missing behind `{name.text}`", span, help=help_)

    def _bare_expression(self) -> Diagnostic | None:
        """A statement that binds nothing."""
        if self.opener is None or self.opener.text != "{":
            return None
        token, previous = self.token, self.previous
        first = self.accepts("RETURN")  # here a statement or slot begins
        help_ = "bind the value, `y = …`, or hand it back, `return …`"
        if first and token.type == "STRING" and self.next.type == "STRING":
            help_ = "documentation is a comment above the declaration: `# What it is.`"
            return Diagnostic("E0101", "a body holds no text", self._here(), help=help_)
        if first and token.type == "STRING" and self.next.text in (":", "="):
            help_ = f"names stand without quotes: `{token.text[1:-1]}: …`"
            return Diagnostic("E0101", "a slot has a name, not a string", self._here(), help=help_)
        if first and token.text == "-" and self.next.type == "NAME":
            help_ = f"slots follow each other without marks: `{self.next.text}: …`"
            return Diagnostic("E0101", "a body holds no list", self._here(), help=help_)
        if first and ((token.type in ("NUMBER", "STRING", "DOTTED")) or token.text in ("(", "[", "-", "~", "not")):
            return Diagnostic("E0101", "a statement is never a bare expression", self._here(), help=help_)
        if first and token.text == ",":
            grouped = re.search(r"\d+\Z", self.source.text[: token.start])
            after = re.match(r"(?:,\d{3})+(?!\d)", self.source.text[token.start :])
            if grouped is not None and after is not None:
                help_ = f"digits are grouped by `_`: `{grouped[0]}{after[0].replace(',', '_')}`"
                return Diagnostic("E0101", "a number holds no `,`", self._here(), help=help_)
            line = self.source.text[: token.start].rpartition("\n")[2]
            several = re.match(r"\s*\w+(?:\s*,\s*\w+)+\s*=(?!=)", line)
            help_ = "slots and statements follow each other without commas"
            if several is not None:
                help_ = "several names take the results of one expression; others are bound one by one: `a = …  b = …`"
            return Diagnostic("E0101", "no `,` stands between statements", self._here(), help=help_)
        if previous is None or previous.type != "NAME" or not self.accepts("RETURN", back=1):
            return None
        span = self._span(previous.start, token.end)
        if (previous.text in WORDS and self._starts_line(previous)) or previous.text in ("elif", "elsif"):
            message = f"`{previous.text}` is no word of the language"
            return Diagnostic("E0101", message, self._span(previous.start, previous.end), help=WORDS[previous.text])
        if token.text in ("+", "-", "*", "/", "//", "%", "**", "&", "|") and self.next.text == "=":
            help_ = f"write `{previous.text} = {previous.text} {token.text} …`"
            return Diagnostic("E0101", f"only `+=` updates a tensor; there is no `{token.text}=`", span, help=help_)
        if token.text == "==":
            help_ = f"a slot is given by `{previous.text}: …`, a tensor is bound by `{previous.text} = …`"
        if token.text in ("->", "(", "[", "as") or token.text in OPERATORS:
            return Diagnostic("E0101", "a statement is never a bare expression", span, help=help_)
        return None

    def _unexpected(self) -> Diagnostic:
        token = self.token
        expected = self._expected()
        help_ = ""
        above = self.values[-1] if self.values else None
        previous = self.previous
        if not self.values and token.type == "NAME":
            help_ = WORDS.get(token.text, "")
        elif token.type == "DOTTED" and self.accepts("NAME"):
            help_ = "a new name is one word, without a dot"
        elif token.text in COMPARISONS and isinstance(above, EXPRESSIONS):
            help_ = "write `a < b and b < c`"
            return Diagnostic("E0101", "comparisons do not chain", self._here(), help=help_)
        elif previous is not None and previous.text == token.text and token.text in ("&", "|"):
            word = {"&": "and", "|": "or"}[token.text]
            help_ = f"write `{word}` for conditions, a single `{token.text}` for masks"
        elif token.text in (">", "=") and above is not None and self._glued() in OTHER_ARROWS:
            glued = self._glued()
            span = self._span(token.start - 1, token.end)
            return Diagnostic("E0101", f"there is no `{glued}`", span, help=OTHER_ARROWS[glued])
        elif self.values and isinstance(above, Token) and above.text == "import" and token.type in ("NAME", "DOTTED"):
            help_ = f'an import names a file: `import "{token.text.removesuffix(".arch")}.arch"`'
        elif self.source.text[: token.start].rstrip().endswith("lambda"):
            help_ = "a function of one's own is a block: `block name(x: [..., width]) { … }`"
        elif above is not None and (percent := self._per_cent()) is not None:
            help_ = f"`%` is the remainder of a division: write `{float(percent[1]) / 100:g}`"
            span = self._span(percent.start(1), percent.end())
            return Diagnostic("E0101", "shares are not written in per cent", span, help=help_)
        elif self.opener is not None and self.opener.text in ("(", "[") and "`,`" in expected and self._begins_value():
            help_ = "separate the entries by `,`"
        elif token.text == "in" and "`{`" in expected:
            help_ = "several sequences stand behind one `in`: `for a, b in x, y`"
        elif token.text == "=" and (isinstance(above, EXPRESSIONS) or _ends_value(above)):
            help_ = "equality is tested by `==`"
        elif isinstance(above, ast.Name) and expected == ["`(`", "`[`"]:
            help_ = f"write `{above.id}()`"
        message = f"expected {_either(expected)}, found {self._found()}" if expected else f"unexpected {self._found()}"
        return Diagnostic("E0101", message, self._here(), labels=self._inside(), help=help_)

    def _glued(self) -> str:
        """The sign that this one makes with the character before."""
        return self.source.text[max(self.token.start - 1, 0) : self.token.end]

    def _per_cent(self) -> re.Match[str] | None:
        """`10%`, with nothing behind it that could be divided by."""
        name = r"(?:\w+\s*)?" if self.token.text in (":", "=", "+=") else ""  # of the next slot
        return re.search(rf"(\d+(?:\.\d+)?)\s*%(?=\s*{name}\Z)", self.source.text[: self.token.start])

    def _begins_value(self) -> bool:
        return self.token.type in ("NAME", "DOTTED", "NUMBER", "STRING")


def _ends_value(x: Any) -> bool:
    """Whether a word that waits on the stack is a value so far."""
    return isinstance(x, Token) and x.type in ("NAME", "DOTTED", "NUMBER")


def _number_help(word: str) -> str:
    """What a number with a unit, or a name behind it, was meant to be."""
    unit = re.fullmatch(r"(\d+(?:\.\d+)?)(k|K|Ki|M|Mi|G|B|T)", word)
    if unit is not None:
        factor = {"k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9, "t": 10**12}[unit[2][0].lower()]
        number = float(unit[1]) * factor
        said = f"write `{int(number):_}`" if number.is_integer() else f"write it as a plain number: `{number:_.0f}`"
        power = {"k": " * 1024", "m": " * 1024 ** 2", "g": " * 1024 ** 3"}.get(unit[2][0].lower())
        return said + (f", or `{unit[1]}{power}`" if power else "")
    if re.fullmatch(r"\d+x", word):
        return f"a repetition is written with `*`: `{word[:-1]} * layer`"
    product = re.fullmatch(r"(\d+(?:\.\d+)?)([A-Za-z_]\w*)", word)
    if product is not None and not re.match(r"[eExXbBoO]\w*$", product[2]):
        return f"a product is written with `*`: `{product[1]} * {product[2]}`"
    return "a number looks like `12`, `50_257`, `0.02` or `1e-5`"


def _either(words: Sequence[str]) -> str:
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} or {words[-1]}"


def _one_line(text: str) -> str:
    return " ".join(text.split())
