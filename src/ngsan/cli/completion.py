"""`ngsan completion`: scripts that complete commands and options in a shell."""

import argparse
from collections.abc import Iterator

from ngsan.cli import COMMANDS, find_command
from ngsan.cli.parser import Command, Group, Parser

SHELLS = ("bash", "zsh", "fish")

_BASH = """_ngsan() {{
    local key="" word i
    for ((i = 1; i < COMP_CWORD; i++)); do
        word="${{COMP_WORDS[i]}}"
        [[ -n "${{_ngsan_words[${{key:+$key }}$word]+set}}" ]] || break
        key="${{key:+$key }}$word"
    done
    COMPREPLY=($(compgen -W "${{_ngsan_words[${{key:-ngsan}}]}}" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
declare -A _ngsan_words=(
{table}
)
complete -o default -F _ngsan ngsan
"""

_FISH = """function __ngsan_at
    set -l words (commandline -opc)[2..-1]
    test "$argv" = "$words[1..(count $argv)]"
end
{table}
"""


def _walk(path: tuple[str, ...], command: Command | Group) -> Iterator[tuple[str, dict[str, str]]]:
    """The words that may follow each command, with their help."""
    name = " ".join(path)
    if isinstance(command, Group):
        words = {word: one.text for word, one in command.commands.items()}
        if command.default:
            default = command.commands[command.default]
            assert isinstance(default, Command)
            words |= _options(default.parser(name))
        yield name, words
        for word, one in command.commands.items():
            yield from _walk((*path, word), one)
    else:
        yield name, _options(command.parser(name))


def _options(parser: Parser) -> dict[str, str]:
    return {
        flag: "" if action.help is None else action.help
        for action in parser._actions
        for flag in action.option_strings
        if flag.startswith("--") and action.help != argparse.SUPPRESS
    }


def script(shell: str) -> str:
    """The script for a shell, one of `SHELLS`."""
    found: dict[str, dict[str, str]] = {}
    for name in COMMANDS:
        found |= _walk((name,), find_command(name))
    table = {"ngsan": {**COMMANDS, "--help": "show the help", "--version": "show the version"}}
    table |= found
    if shell == "fish":
        rows = [
            _fish_row("" if name == "ngsan" else name, word, text)
            for name, words in table.items()
            for word, text in words.items()
        ]
        return _FISH.format(table="\n".join(rows))
    rows = [f'    ["{name}"]="{" ".join(words)}"' for name, words in table.items()]
    head = "" if shell == "bash" else "autoload -U +X bashcompinit && bashcompinit\n"
    return head + _BASH.format(table="\n".join(rows))


def _fish_row(name: str, word: str, text: str) -> str:
    about = " ".join(text.replace("%%", "%").split()).split(". ")[0]
    about = about.replace("\\", "\\\\").replace("'", "\\'")
    where = f"__ngsan_at {name}" if name else "test (count (commandline -opc)) -eq 1"
    what = f"-l {word[2:]}" if word.startswith("--") else f"-a {word}"
    return f"complete -c ngsan -n '{where}' {what} -d '{about}'"


def _add_options(parser: Parser) -> None:
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))


def _run(options: argparse.Namespace) -> None:
    print(script(options.shell), end="")


COMPLETION = Command(
    "Print a script that completes commands and options in your shell.",
    _add_options,
    _run,
    ["completion bash > ~/.local/share/bash-completion/completions/ngsan",
     "completion zsh >> ~/.zshrc",
     "completion fish > ~/.config/fish/completions/ngsan.fish"],
)  # fmt: skip
