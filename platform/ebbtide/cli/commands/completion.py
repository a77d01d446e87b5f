"""``ebbtide completion``: the lines that teach a shell to complete this command."""

import click
from click.shell_completion import ShellComplete, get_completion_class

COMPLETE_VARIABLE = "_EBBTIDE_COMPLETE"  # the name that click looks for, made from the program's


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, *, shell: str) -> None:
    """Print the completion script of SHELL.

    \b
      bash: eval "$(ebbtide completion bash)"      in ~/.bashrc
      zsh:  eval "$(ebbtide completion zsh)"       in ~/.zshrc
      fish: ebbtide completion fish | source       in ~/.config/fish/config.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None, "click knows all three"
    # The base class's own source(): bash's would first start a bash to learn its version.
    click.echo(ShellComplete.source(kind(ctx.find_root().command, {}, "ebbtide", COMPLETE_VARIABLE)))
