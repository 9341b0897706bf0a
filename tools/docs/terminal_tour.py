"""Records docs/tour.svg: a real run of forewarn's commands, as an animated picture of a terminal.

The picture is one SVG file without scripts and without references. It stands still for readers who want no motion, and
in programs that cannot animate. The files of its commands are those of the first tutorial.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

from rich.style import Style
from rich.text import Text

from tools.docs.executable_page import (
    ROOT,
    CommandStep,
    FileStep,
    PageShell,
    is_same_output,
    open_page_shell,
    page_steps,
)
from tools.docs.shell_session import COLUMNS

TITLE = "A tour of forewarn in a terminal"
_POLL = (
    "curl -s -H Metadata:true 'http://127.0.0.1:8254/metadata/scheduledevents?api-version=2020-07-01' \\\n"
    "    | python3 -m json.tool"
)
_SCENES = (  # caption, commands
    ("Start a lab with thirteen VMs", ("forewarn up --detach --wait-ready",)),
    ("Request a restart: it gives 15 minutes of notice", ("forewarn restart web-0",)),
    ("The VM reads it in its document, as on Azure", (_POLL,)),
    ("It approves, and a minute passes", ("forewarn guest approve --own --endpoint http://127.0.0.1:8254",
                                          "forewarn clock advance 1m")),
    ("A handler reacts: it prepares, approves and resumes", (
        "FOREWARN_ENDPOINT=http://127.0.0.1:8254 python3 handler.py > handler.log &",
        "forewarn clock speed 20", "forewarn restart web-0 --wait", "cat handler.log")),
    ("Why was it down?", ("forewarn explain web-0",)),
    ("Roll out an update, one domain at a time", ("forewarn rollout start --scope db --impact update",
                                                  "forewarn clock advance 1h")),
    ("A host will fail in a week: let the week pass", ("forewarn degrade host-3 --in 7d",
                                                       "forewarn clock advance 7d10m")),
)  # fmt: skip
_TUTORIAL = ROOT / "docs" / "tutorials" / "first-ten-minutes.md"
_TEXT = "{http://www.w3.org/2000/svg}text"
_STILL_SCENE = 4  # shown where nothing moves
_MAX_LINES = 27
_FONT_SIZE, _LINE_HEIGHT, _COLUMN_WIDTH = 13, 18, 8
_MARGIN, _TITLE_BAR = 16, 34
_WIDTH = COLUMNS * _COLUMN_WIDTH + 2 * _MARGIN
_HEIGHT = _TITLE_BAR + (_MAX_LINES + 1) * _LINE_HEIGHT + _MARGIN
_BUTTONS = ((2, "red"), (1, "yellow"), (0, "green"))  # of the window: place from the right, colour
_TYPING_S, _PAUSE_S, _LINE_S, _MAX_SCENE_S = 1.4, 3.0, 0.3, 9.0
_COLOURS = {  # number of a terminal's colour → class, colour
    1: ("red", "#ff8a80"),
    2: ("green", "#7ee787"),
    3: ("yellow", "#f2cc60"),
    6: ("cyan", "#76d9f2"),
    8: ("grey", "#9aa4b2"),
}


@dataclass(frozen=True, slots=True)
class TourCommand:
    """A command of the tour, and the lines that it printed, with their colours."""

    command: str
    lines: tuple[Text, ...]


@dataclass(frozen=True, slots=True)
class TourScene:
    """What the terminal shows at a time: a caption, and commands with their output."""

    caption: str
    commands: tuple[TourCommand, ...]


def tour_commands() -> Iterator[str]:
    """Yield the commands of the tour, in order."""
    for _, commands in _SCENES:
        yield from commands


def record_tour(shell: PageShell) -> list[TourScene]:
    """Run the commands of the tour, and return what they printed. Raises RuntimeError if one of them fails."""
    files = [step for step in page_steps(_TUTORIAL.read_text(encoding="utf-8")) if isinstance(step, FileStep)]
    quiet = CommandStep("exec 2>/dev/null", None)  # progress on stderr is no part of the picture
    list(shell.run_steps([*files, quiet]))
    return [
        TourScene(caption, tuple(_run_command(shell, command) for command in commands)) for caption, commands in _SCENES
    ]


def _run_command(shell: PageShell, command: str) -> TourCommand:
    (done,) = shell.run_steps([CommandStep(command, None)])
    if done.status:
        raise RuntimeError(f"$ {command}\n{done.output}\nexit status {done.status}")
    output = re.sub(r"/\S+/home/", "/home/ann/", _final_output(done.output)).rstrip("\n")
    lines = Text.from_ansi(output).split("\n", allow_blank=True) if output else ()
    return TourCommand(command, tuple(lines))


def _final_output(output: str) -> str:
    """Return what a terminal still shows when the command has ended: progress is erased from below (`rich.live`)."""
    lines = [""]
    for part in re.split(r"(\n|\r|\x1b\[2K|\x1b\[1A)", output):
        match part:
            case "\n":
                lines.append("")
            case "\r":
                pass
            case "\x1b[2K":
                lines[-1] = ""
            case "\x1b[1A":
                lines.pop()
            case _:
                lines[-1] += part
    return "\n".join(lines)


def tour_svg(scenes: Sequence[TourScene]) -> str:
    """Return the picture of these scenes."""
    total_s = sum(_scene_s(scene) for scene in scenes)
    commands = "; ".join(each.command for scene in scenes for each in scene.commands)
    begins_s, style, groups = 0.0, [_static_style()], []
    for number, scene in enumerate(scenes):
        style.append(_scene_style(number, begins_s, _scene_s(scene), total_s))
        groups.append(_scene_group(number, scene))
        begins_s += _scene_s(scene)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
            f'height="{_HEIGHT}" role="img" aria-labelledby="title description">',
            f'<title id="title">{TITLE}</title>',
            f'<desc id="description">The commands, one after the other: {escape(commands)}</desc>',
            "<style>",
            *style,
            "</style>",
            f'<rect class="window" x="0.5" y="0.5" width="{_WIDTH - 1}" height="{_HEIGHT - 1}" rx="8"/>',
            f'<path class="bar" d="M0.5 {_TITLE_BAR}.5H{_WIDTH - 0.5}"/>',
            *(f'<circle class="{name}" cx="{_WIDTH - 20 - 20 * place}" cy="17" r="6"/>' for place, name in _BUTTONS),
            *groups,
            "</svg>\n",
        ]
    )


def _scene_lines(scene: TourScene) -> list[tuple[str, Text]]:
    """Return the lines of the terminal, each with its class; output that does not fit is cut."""
    lines: list[tuple[str, Text]] = []
    for number, each in enumerate(scene.commands):
        lines += [("output", Text())] if number else []
        typed = Text.assemble(("$ ", "color(2)"), each.command)
        lines += [("command", line) for line in typed.split("\n")]
        lines += [("output", line) for line in each.lines]
    if len(lines) > _MAX_LINES:
        lines = [*lines[: _MAX_LINES - 1], ("output", Text("…"))]
    return lines


def _scene_s(scene: TourScene) -> float:
    return min(_MAX_SCENE_S, _TYPING_S + _PAUSE_S + _LINE_S * len(_scene_lines(scene)))


def _static_style() -> str:
    return "\n".join(
        [
            ".window{fill:#0d1117;stroke:#30363d} .bar{stroke:#30363d}",
            f"text{{font:{_FONT_SIZE}px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',"
            "'Liberation Mono',monospace;fill:#e6edf3;white-space:pre}",
            ".caption{font-family:system-ui,sans-serif;font-weight:600} .command,.bold{font-weight:700}",
            *(f".{name}{{fill:{colour}}}" for name, colour in _COLOURS.values()),
            f".scene{{visibility:hidden}} .scene-{_STILL_SCENE}{{visibility:visible}}",
        ]
    )


def _scene_style(number: int, begins_s: float, lasts_s: float, total_s: float) -> str:
    """Return the animation of a scene: it appears, its commands are typed, and their output is printed."""
    begin, typed, end = (f"{100 * at / total_s:.2f}%" for at in (begins_s, begins_s + _TYPING_S, begins_s + lasts_s))
    first = "" if number == 0 else "0%{visibility:hidden}"
    return "\n".join(
        [
            "@media(prefers-reduced-motion:no-preference){",
            f"@keyframes scene-{number}{{{first}{begin}{{visibility:visible}}{end},100%{{visibility:hidden}}}}",
            f"@keyframes type-{number}{{0%,{begin}{{clip-path:inset(0 100% 0 0)}}{typed},100%{{clip-path:inset(0)}}}}",
            f"@keyframes print-{number}{{0%{{opacity:0}}{typed}{{opacity:1}}}}",
            f".scene-{number}{{animation:scene-{number} {total_s:.1f}s step-end infinite}}",
            f".scene-{number} .typed{{animation:type-{number} {total_s:.1f}s steps(40) infinite}}",
            f".scene-{number} .printed{{animation:print-{number} {total_s:.1f}s step-end infinite}}",
            "}",
        ]
    )


def _scene_group(number: int, scene: TourScene) -> str:
    """Return the lines of a scene: the first command is typed, everything after it is printed at once."""
    rows = [f'<text class="caption" x="{_MARGIN}" y="{_TITLE_BAR - 12}">{number + 1}. {escape(scene.caption)}</text>']
    for row, (kind, line) in enumerate(_scene_lines(scene)):
        if not line.plain.strip():
            continue
        y = _TITLE_BAR + (row + 1) * _LINE_HEIGHT + 6
        moves = "typed" if row == 0 else "printed"
        rows.append(f'<text class="{kind} {moves}" x="{_MARGIN}" y="{y}">{"".join(_spans(line))}</text>')
    return "\n".join([f'<g class="scene scene-{number}">', *rows, "</g>"])


def _spans(line: Text) -> Iterator[str]:
    """Yield the pieces of a line, each in its style."""
    line = line.copy()
    line.rstrip()
    offsets = sorted({0, len(line), *(edge for span in line.spans for edge in (span.start, span.end))})
    for start, end in pairwise(offsets):
        styles = [span.style for span in line.spans if span.start <= start < span.end]
        names = _class_names([Style.parse(str(style)) for style in [line.style, *styles] if str(style)])
        text = escape(line.plain[start:end], quote=False)
        yield f'<tspan class="{names}">{text}</tspan>' if names else text


def _class_names(styles: Sequence[Style]) -> str:
    style = Style.combine(styles) if styles else Style.null()
    number = style.color.number if style.color else None
    return " ".join([*(["bold"] if style.bold else []), *([_COLOURS[number][0]] if number in _COLOURS else [])])


def shown_lines(svg: str) -> list[str]:
    """Return the lines of text in a picture of the tour."""
    root = ElementTree.fromstring(svg)
    return ["".join(text.itertext()) for text in root.iter(_TEXT)]


def shown_commands(svg: str) -> list[str]:
    """Return the commands in a picture of the tour, in order."""
    root = ElementTree.fromstring(svg)
    lines = ["".join(text.itertext()) for text in root.iter(_TEXT) if "command" in text.get("class", "").split()]
    return "\n".join(lines).removeprefix("$ ").split("\n$ ")


def update_tour(path: Path, ports: tuple[int, int]) -> None:
    """Record the tour in a lab on these ports, and write it to this file unless only ids and times have changed."""
    with open_page_shell(ports=ports, terminal="xterm-256color") as shell:
        new = tour_svg(record_tour(shell))
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    if not old or not is_same_picture(old, new):
        path.write_text(new, encoding="utf-8")


def is_same_picture(old: str, new: str) -> bool:
    """Return whether two pictures show the same but for ids, times and durations."""
    same_text = is_same_output("\n".join(shown_lines(old)), "\n".join(shown_lines(new)))
    return same_text and re.sub(r"<text.*</text>", "", old) == re.sub(r"<text.*</text>", "", new)
