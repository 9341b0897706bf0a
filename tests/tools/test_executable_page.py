"""Pages are taken apart into files and commands; outputs are compared without what differs from run to run."""

from __future__ import annotations

import pytest

from tools.docs.executable_page import CommandStep, FileStep, is_same_output, page_steps, run_problems

PAGE = """# A page

```sh
pip install './forewarn[server]'
```

```python title="greet.py"
print("hello", __file__)
```

```console
$ greeting=$(python3 greet.py)
$ echo "$greeting" \\
    | cut -c 1-5
hello
$ false
$ echo $?
1
```

```sh
mkdir -p below
cd below
```

```console
$ basename "$PWD"
below
```
"""


def test_a_page_is_a_list_of_files_and_commands() -> None:
    assert page_steps(PAGE) == [
        FileStep("greet.py", 'print("hello", __file__)\n'),
        CommandStep("greeting=$(python3 greet.py)", ""),
        CommandStep('echo "$greeting" \\\n    | cut -c 1-5', "hello\n"),
        CommandStep("false", "", may_fail=True),
        CommandStep("echo $?", "1\n"),
        CommandStep("mkdir -p below", None),
        CommandStep("cd below", None),
        CommandStep('basename "$PWD"', "below\n"),
    ]


def test_the_commands_of_a_page_share_one_shell() -> None:
    assert run_problems(PAGE, (1, 2)) == []


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        ("```console\n$ echo hello\ngoodbye\n```\n", "hello"),
        ("```console\n$ false\n```\n", "exit status 1"),
        ("```sh\ncd nowhere\ntrue\n```\n", "nowhere"),
    ],
)
def test_a_command_that_does_something_else_is_a_problem(block: str, problem: str) -> None:
    (found,) = run_problems(block, (1, 2))
    assert problem in found


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        ("event 00E2639F-D1BE-462A-B277-EC64FB376AD6", "event 11E2639F-D1BE-462A-B277-EC64FB376AD7"),
        ("event 00E2639F  Reboot", "event 1B34D6F0 Reboot"),
        ("not before 17:47:36 UTC (in 15m 1s)", "not before 09:00:00 UTC+04 (in 15m)"),
        ("15 min of notice promised,\n  3 s given", "15 min of notice promised, 12 s given"),
        ("requested by local user root (user restart)", "requested by local user ann (user restart)"),
        ("forewarn 0.1.0: the lab is up.", "forewarn 0.1.1.dev3+gab12: the lab is up."),
        ("first\n…\nlast", "first\nsecond\nthird\nlast"),
        ("first\n…", "first"),
        ("portal  http://localhost:8443/portal/sign-in/once/a-b_c", "portal http://localhost:8443/portal/sign-in/once/x"),
    ],
)  # fmt: skip
def test_outputs_are_compared_without_what_differs_from_run_to_run(expected: str, actual: str) -> None:
    assert is_same_output(expected, actual)


@pytest.mark.parametrize(
    ("expected", "actual"),
    [("Reboot of web-0", "Reboot of web-1"), ("first\n…\nlast", "first\nlast one"), ("1 passed", "1 passed, 1 failed")],
)
def test_other_differences_count(expected: str, actual: str) -> None:
    assert not is_same_output(expected, actual)
