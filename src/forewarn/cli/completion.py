"""Completion for shells: commands, options, and the names that the service knows."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from forewarn.cli.invocation import Invocation, shown


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@shown
def completion(call: Invocation, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash   eval "$(forewarn completion bash)"       in ~/.bashrc
    zsh    eval "$(forewarn completion zsh)"        in ~/.zshrc
    fish   forewarn completion fish | source        in ~/.config/fish/config.fish
    """
    found = get_completion_class(shell)
    assert found is not None
    root = click.get_current_context().find_root().command
    script = found(root, {}, "forewarn", "_FOREWARN_COMPLETE").source()
    if call.screen.as_json:
        call.screen.document({"shell": shell, "script": script})
    else:
        click.echo(script)
