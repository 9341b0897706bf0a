"""Parses PowerShell text into functions that are evaluated in order."""

from __future__ import annotations

import re
from typing import Any

from tests.support.powershell.interpreter import (
    PARAMETERS,
    SWITCHES,
    BreakLoop,
    Evaluate,
    PowerShellSession,
    UnsupportedPowerShell,
    assignment,
    break_loop,
    constant,
    index_access,
    member_access,
    raise_script_error,
    run_all,
    text_of,
)

_BLANK = re.compile(r"(?:[ \t]|`\n|#[^\n]*)*")
_BLANKS = re.compile(r"(?:[ \t\n;]|`\n|#[^\n]*)*")
_COMMAND = re.compile(r"[A-Z]\w*-[A-Z]\w*")
_PARAMETER = re.compile(r"-([A-Za-z]\w*)(?=[\s)};|]|$)")
# A question mark belongs to a name, so that "$vm?x" has no $vm in it; a colon would name a drive.
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|([A-Za-z_][\w?]*)(?![\w?:]))")
_ASSIGNED = re.compile(r"\$(\w+)((?:\.\w+)*)[ \t]*=(?!=)[ \t]*")
_MEMBER = re.compile(r"\.(\w+)")
_KEY = re.compile(r"\w+")
_NUMBER = re.compile(r"\d+\b")
_WORD = re.compile(r"[A-Za-z][\w.\-]*")
_COMPARED = re.compile(r"-(eq|ne)\b")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}


def run_script(text: str, shell: PowerShellSession) -> None:
    run_all(PowerShellParser(text).parse(), shell)


class PowerShellParser:
    """Parses a script into functions to call in order."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def parse(self) -> list[Evaluate]:
        done = self._statements()
        if self._at < len(self._text):
            raise self._error("a statement")
        return done

    def _statements(self) -> list[Evaluate]:
        found: list[Evaluate] = []
        self._skip(_BLANKS)
        while self._at < len(self._text) and self._text[self._at] not in ")}":
            found.append(self._statement())
            self._skip(_BLANK)
            if self._at < len(self._text) and self._text[self._at] not in "\n;)}":
                raise self._error("the end of the line")
            self._skip(_BLANKS)
        return found

    def _statement(self) -> Evaluate:
        if self._accept("foreach ("):
            return self._foreach()
        if self._accept("if ("):
            return self._if()
        if self._accept("break"):
            return break_loop
        if self._accept("throw "):
            message = self._expression()
            return lambda shell: raise_script_error(text_of(message(shell)))
        if assigned := _ASSIGNED.match(self._text, self._at):
            self._at = assigned.end()
            return assignment(assigned[1], assigned[2].split(".")[1:], self._pipeline())
        return self._pipeline()

    def _foreach(self) -> Evaluate:
        name = self._match(_VARIABLE)[2]
        self._skip(_BLANK)
        self._expect("in ")
        values = self._expression()
        self._expect(")")
        body = self._block()

        def loop(shell: PowerShellSession) -> None:
            for value in values(shell):
                shell.set(name, value)
                try:
                    run_all(body, shell)
                except BreakLoop:
                    return

        return loop

    def _if(self) -> Evaluate:
        asked = self._expression()
        self._expect(")")
        body = self._block()
        return lambda shell: run_all(body, shell) if asked(shell) else None

    def _block(self) -> list[Evaluate]:
        self._skip(_BLANK)
        self._expect("{")
        body = self._statements()
        self._expect("}")
        return body

    def _pipeline(self) -> Evaluate:
        first = self._element()
        self._skip(_BLANK)
        while self._accept("|"):
            self._skip(_BLANKS)
            first = self._command(first)
            self._skip(_BLANK)
        return first

    def _element(self) -> Evaluate:
        return self._command(None) if _COMMAND.match(self._text, self._at) else self._expression()

    def _command(self, before: Evaluate | None) -> Evaluate:
        name = self._match(_COMMAND)[0]
        if name not in PARAMETERS:
            raise UnsupportedPowerShell(f"there is no {name} that this reader knows")
        given: dict[str, Evaluate] = {}
        while (parameter := self._parameter()) is not None:
            if parameter not in PARAMETERS[name] or parameter in given:
                raise UnsupportedPowerShell(f"{name} has no parameter -{parameter}, or had it before")
            switch = parameter in SWITCHES
            given[parameter] = constant(True) if switch else self._argument()

        def call(shell: PowerShellSession) -> Any:
            piped = before(shell) if before is not None else None
            return shell.call(name, {key: value(shell) for key, value in given.items()}, piped)

        return call

    def _parameter(self) -> str | None:
        self._skip(_BLANK)
        found = _PARAMETER.match(self._text, self._at)
        if found is None:
            return None
        self._at = found.end()
        self._skip(_BLANK)
        return found[1]

    def _argument(self) -> Evaluate:
        if word := _WORD.match(self._text, self._at):
            self._at = word.end()
            return constant(word[0])
        return self._list()

    def _list(self) -> Evaluate:
        """Parses one value, or several separated by commas."""
        values = [self._value()]
        while self._accept(","):
            self._skip(_BLANK)
            values.append(self._value())
        return values[0] if len(values) == 1 else lambda shell: [one(shell) for one in values]

    def _expression(self) -> Evaluate:
        left = self._list()
        if self._accept(".."):
            last = self._value()
            return lambda shell: range(left(shell), last(shell) + 1)
        self._skip(_BLANK)
        if compared := _COMPARED.match(self._text, self._at):
            self._at = compared.end()
            self._skip(_BLANK)
            right, same = self._value(), compared[1] == "eq"
            return lambda shell: (text_of(left(shell)).lower() == text_of(right(shell)).lower()) is same
        return left

    def _value(self) -> Evaluate:
        value = self._primary()
        while True:
            if found := _MEMBER.match(self._text, self._at):
                self._at = found.end()
                value = member_access(value, found[1])
            elif self._accept("["):
                value = index_access(value, self._value())
                self._expect("]")
            else:
                return value

    def _primary(self) -> Evaluate:
        if self._accept("@'\n"):
            return constant(self._text_until("\n'@"))
        if self._accept("@{"):
            return self._hashtable()
        if self._accept("@("):
            return self._array()
        if self._accept("("):
            inner = self._pipeline()
            self._expect(")")
            return inner
        if self._accept("'"):
            return constant(self._single_quoted())
        if self._accept('"'):
            return self._double_quoted()
        if number := _NUMBER.match(self._text, self._at):
            self._at = number.end()
            return constant(int(number[0]))
        return self._variable()

    def _variable(self) -> Evaluate:
        found = self._match(_VARIABLE)
        name = found[1] or found[2]
        return lambda shell: shell.get(name)

    def _hashtable(self) -> Evaluate:
        held: dict[str, Evaluate] = {}
        self._skip(_BLANKS)
        while not self._accept("}"):
            key = self._single_quoted() if self._accept("'") else self._match(_KEY)[0]
            self._skip(_BLANK)
            self._expect("=")
            self._skip(_BLANK)
            held[key] = self._expression()
            self._skip(_BLANKS)
        return lambda shell: {key: value(shell) for key, value in held.items()}

    def _array(self) -> Evaluate:
        self._skip(_BLANKS)
        if self._accept(")"):
            return lambda shell: []
        values = self._list()
        self._skip(_BLANKS)
        self._expect(")")
        return lambda shell: value if isinstance(value := values(shell), list) else [value]

    def _single_quoted(self) -> str:
        text = self._text_until("'")
        while self._accept("'"):
            text += "'" + self._text_until("'")
        return text

    def _double_quoted(self) -> Evaluate:
        pieces: list[Evaluate] = []
        while not self._accept('"'):
            pieces.append(self._string_piece())
        return lambda shell: "".join(text_of(piece(shell)) for piece in pieces)

    def _string_piece(self) -> Evaluate:
        if self._at >= len(self._text):
            raise self._error('the end of a "string"')
        if self._accept("$("):
            inner = self._pipeline()
            self._expect(")")
            return inner
        if self._accept("`"):
            self._at += 1
            escaped = self._text[self._at - 1 : self._at]
            return constant(_ESCAPED.get(escaped, escaped))
        if self._text[self._at] == "$":
            return self._variable()
        self._at += 1
        return constant(self._text[self._at - 1])

    def _text_until(self, end: str) -> str:
        found = self._text.find(end, self._at)
        if found < 0:
            raise self._error(repr(end))
        text, self._at = self._text[self._at : found], found + len(end)
        return text

    def _skip(self, blank: re.Pattern[str]) -> None:
        found = blank.match(self._text, self._at)
        self._at = found.end() if found else self._at

    def _accept(self, text: str) -> bool:
        if not self._text.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _expect(self, text: str) -> None:
        self._skip(_BLANK)
        if not self._accept(text):
            raise self._error(repr(text))

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        found = pattern.match(self._text, self._at)
        if found is None:
            raise self._error(pattern.pattern)
        self._at = found.end()
        return found

    def _error(self, wanted: str) -> UnsupportedPowerShell:
        line = self._text.count("\n", 0, self._at) + 1
        return UnsupportedPowerShell(f"line {line}: {wanted} was expected at {self._text[self._at : self._at + 40]!r}")
