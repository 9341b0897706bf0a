"""What is written: turns text into things to do, one after the other."""

from __future__ import annotations

import re
from typing import Any

from forewarn.testing.powershell.cmdlet import PARAMETERS, SWITCHES
from forewarn.testing.powershell.shell import (
    Break,
    Do,
    NotPowerShell,
    Shell,
    always,
    assignment,
    indexed,
    member,
    run_all,
    stop,
    text_of,
    throw,
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


def run(text: str, shell: Shell) -> None:
    run_all(Parser(text).whole(), shell)


class Parser:
    """Turns text into things to do, one after the other."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def whole(self) -> list[Do]:
        done = self._statements()
        if self._at < len(self._text):
            raise self._bad("a statement")
        return done

    def _statements(self) -> list[Do]:
        found: list[Do] = []
        self._skip(_BLANKS)
        while self._at < len(self._text) and self._text[self._at] not in ")}":
            found.append(self._statement())
            self._skip(_BLANK)
            if self._at < len(self._text) and self._text[self._at] not in "\n;)}":
                raise self._bad("the end of the line")
            self._skip(_BLANKS)
        return found

    def _statement(self) -> Do:
        if self._takes("foreach ("):
            return self._foreach()
        if self._takes("if ("):
            return self._if()
        if self._takes("break"):
            return stop
        if self._takes("throw "):
            told = self._expression()
            return lambda shell: throw(text_of(told(shell)))
        if assigned := _ASSIGNED.match(self._text, self._at):
            self._at = assigned.end()
            return assignment(assigned[1], assigned[2].split(".")[1:], self._pipeline())
        return self._pipeline()

    def _foreach(self) -> Do:
        name = self._needs(_VARIABLE)[2]
        self._skip(_BLANK)
        self._must("in ")
        values = self._expression()
        self._must(")")
        body = self._block()

        def loop(shell: Shell) -> None:
            for value in values(shell):
                shell.set(name, value)
                try:
                    run_all(body, shell)
                except Break:
                    return

        return loop

    def _if(self) -> Do:
        asked = self._expression()
        self._must(")")
        body = self._block()
        return lambda shell: run_all(body, shell) if asked(shell) else None

    def _block(self) -> list[Do]:
        self._skip(_BLANK)
        self._must("{")
        body = self._statements()
        self._must("}")
        return body

    def _pipeline(self) -> Do:
        first = self._element()
        self._skip(_BLANK)
        while self._takes("|"):
            self._skip(_BLANKS)
            first = self._command(first)
            self._skip(_BLANK)
        return first

    def _element(self) -> Do:
        return self._command(None) if _COMMAND.match(self._text, self._at) else self._expression()

    def _command(self, before: Do | None) -> Do:
        name = self._needs(_COMMAND)[0]
        if name not in PARAMETERS:
            raise NotPowerShell(f"there is no {name} that this reader knows")
        given: dict[str, Do] = {}
        while (parameter := self._parameter()) is not None:
            if parameter not in PARAMETERS[name] or parameter in given:
                raise NotPowerShell(f"{name} has no parameter -{parameter}, or had it before")
            switch = parameter in SWITCHES
            given[parameter] = always(True) if switch else self._argument()

        def call(shell: Shell) -> Any:
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

    def _argument(self) -> Do:
        if word := _WORD.match(self._text, self._at):
            self._at = word.end()
            return always(word[0])
        return self._list()

    def _list(self) -> Do:
        """One value, or several with commas between them."""
        values = [self._value()]
        while self._takes(","):
            self._skip(_BLANK)
            values.append(self._value())
        return values[0] if len(values) == 1 else lambda shell: [one(shell) for one in values]

    def _expression(self) -> Do:
        left = self._list()
        if self._takes(".."):
            last = self._value()
            return lambda shell: range(left(shell), last(shell) + 1)
        self._skip(_BLANK)
        if compared := _COMPARED.match(self._text, self._at):
            self._at = compared.end()
            self._skip(_BLANK)
            right, same = self._value(), compared[1] == "eq"
            return lambda shell: (text_of(left(shell)).lower() == text_of(right(shell)).lower()) is same
        return left

    def _value(self) -> Do:
        value = self._primary()
        while True:
            if found := _MEMBER.match(self._text, self._at):
                self._at = found.end()
                value = member(value, found[1])
            elif self._takes("["):
                value = indexed(value, self._value())
                self._must("]")
            else:
                return value

    def _primary(self) -> Do:
        if self._takes("@'\n"):
            return always(self._until("\n'@"))
        if self._takes("@{"):
            return self._table()
        if self._takes("@("):
            return self._array()
        if self._takes("("):
            inner = self._pipeline()
            self._must(")")
            return inner
        if self._takes("'"):
            return always(self._single())
        if self._takes('"'):
            return self._double()
        if number := _NUMBER.match(self._text, self._at):
            self._at = number.end()
            return always(int(number[0]))
        return self._variable()

    def _variable(self) -> Do:
        found = self._needs(_VARIABLE)
        name = found[1] or found[2]
        return lambda shell: shell.get(name)

    def _table(self) -> Do:
        held: dict[str, Do] = {}
        self._skip(_BLANKS)
        while not self._takes("}"):
            key = self._single() if self._takes("'") else self._needs(_KEY)[0]
            self._skip(_BLANK)
            self._must("=")
            self._skip(_BLANK)
            held[key] = self._expression()
            self._skip(_BLANKS)
        return lambda shell: {key: value(shell) for key, value in held.items()}

    def _array(self) -> Do:
        self._skip(_BLANKS)
        if self._takes(")"):
            return lambda shell: []
        values = self._list()
        self._skip(_BLANKS)
        self._must(")")
        return lambda shell: value if isinstance(value := values(shell), list) else [value]

    def _single(self) -> str:
        text = self._until("'")
        while self._takes("'"):
            text += "'" + self._until("'")
        return text

    def _double(self) -> Do:
        pieces: list[Do] = []
        while not self._takes('"'):
            pieces.append(self._piece())
        return lambda shell: "".join(text_of(piece(shell)) for piece in pieces)

    def _piece(self) -> Do:
        if self._at >= len(self._text):
            raise self._bad('the end of a "string"')
        if self._takes("$("):
            inner = self._pipeline()
            self._must(")")
            return inner
        if self._takes("`"):
            self._at += 1
            escaped = self._text[self._at - 1 : self._at]
            return always(_ESCAPED.get(escaped, escaped))
        if self._text[self._at] == "$":
            return self._variable()
        self._at += 1
        return always(self._text[self._at - 1])

    def _until(self, end: str) -> str:
        found = self._text.find(end, self._at)
        if found < 0:
            raise self._bad(repr(end))
        text, self._at = self._text[self._at : found], found + len(end)
        return text

    def _skip(self, blank: re.Pattern[str]) -> None:
        found = blank.match(self._text, self._at)
        self._at = found.end() if found else self._at

    def _takes(self, text: str) -> bool:
        if not self._text.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _must(self, text: str) -> None:
        self._skip(_BLANK)
        if not self._takes(text):
            raise self._bad(repr(text))

    def _needs(self, pattern: re.Pattern[str]) -> re.Match[str]:
        found = pattern.match(self._text, self._at)
        if found is None:
            raise self._bad(pattern.pattern)
        self._at = found.end()
        return found

    def _bad(self, wanted: str) -> NotPowerShell:
        line = self._text.count("\n", 0, self._at) + 1
        return NotPowerShell(f"line {line}: {wanted} was expected at {self._text[self._at : self._at + 40]!r}")
