"""The PowerShell interpreter that tests our page: what it runs, and what it rejects."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.powershell import PowerShellSession, UnsupportedPowerShell, run_script


def value_of_x(text: str) -> Any:
    """The value of $x after running this text."""
    shell = PowerShellSession({})
    run_script(text, shell)
    return shell.get("x")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$x = 'it''s $y'", "it's $y"),
        ("$y = 'a'; $x = \"$y/b?c=${y}?\"", "a/b?c=a?"),
        ('$x = "`$y `"q`""', '$y "q"'),
        ('$y = @{ a = @{ b = 2 } }\n$x = "$($y.A.b)"', "2"),
        ("$x = @'\n{ \"a\": 'b' }\n'@", "{ \"a\": 'b' }"),
        ("$x = @{\n  a = 1 # one\n  'b-c' = @('2', $true)\n}", {"a": 1, "b-c": ["2", True]}),
        ("$x = @('a')", ["a"]),
        ("$x = @{ a = @('0') } |\n  ConvertTo-Json `\n  -Depth 1", '{"a": ["0"]}'),
        ("$x = @{ a = 1 }; $x.a = 2", {"a": 2}),
        ("foreach ($n in 1..9) { if ($n -eq 3) { break }; $x = $n }", 2),
    ],
)
def test_the_interpreter_evaluates_as_powershell_does(text: str, value: Any) -> None:
    assert value_of_x(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "$x = 'open",
        '$x = "open',
        "$x = @{ a = 1",
        "$x = (1",
        "$x = 1)",
        "$x = @'\nopen'@",
        "$x = $nobody",
        "$y = 'a'; $x = \"$y?b\"",  # the question mark belongs to the name
        "$y = 'a'; $x = \"$y:8443\"",  # and a colon makes it a drive
        "$x = Invoke-Nothing -Method Get",
        "Invoke-RestMethod -Methode Get",
        "Invoke-RestMethod -Method Fetch",
        "Invoke-AzRestMethod -Method HEAD -Path '/'",
        "Invoke-RestMethod -Method Get -Method Post",
        "Invoke-RestMethod Get",
        "Invoke-RestMethod -Method Get -Uri 'a' 'b'",
        "Invoke-RestMethod -Method Get `  \n -Uri 'a'",  # a blank after the backtick ends the line
        "$x = @{ a = @{ b = @{ c = @{} } } } | ConvertTo-Json",  # deeper than is usual
        '$y = @{}; $x = "$y"',
        "$x = @{ a = 1 }; $x.b = 2",
    ],
)
def test_the_interpreter_rejects_what_powershell_rejects(text: str) -> None:
    with pytest.raises(UnsupportedPowerShell):
        value_of_x(text)
