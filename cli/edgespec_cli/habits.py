"""Commands and options of Ollama, llama.cpp and llm: they work, or the error says what does."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping

import click

from .errors import ErrorGroup
from .render import say

COMMANDS = {
    "complete": '`edgespec run "TEXT"` answers a prompt',
    "cp": "give the file's path wherever a model is asked for",
    "create": "`edgespec run ./model.gguf` runs a file as it is; settings are options, see "
    "`edgespec run --help`",
    "delete": "`edgespec rm MODEL` deletes a model",
    "download": "`edgespec pull MODEL` downloads a model",
    "generate": '`edgespec run "TEXT"` answers a prompt',
    "help": "`edgespec --help` lists the commands, `edgespec COMMAND --help` explains one",
    "info": "`edgespec inspect MODEL` shows what a model is",
    "logs": "`edgespec -v COMMAND` logs to stderr",
    "prompt": '`edgespec run "TEXT"` answers a prompt',
    "ps": "a model is in memory only while its command runs; `edgespec list` shows those on disk",
    "push": "models are not uploaded; `hf upload` does that",
    "quantize": "`edgespec pull MODEL:Q8_0` fetches another format, `edgespec convert` makes ONNX",
    "search": "`edgespec models` lists the catalogue, `edgespec pull hf:ORG/REPO` takes any other",
    "server": "`edgespec serve` serves a model",
    "show": "`edgespec inspect MODEL` shows what a model is",
    "status": "`edgespec doctor` checks this device, `edgespec list` shows what is on disk",
    "stop": "a model is unloaded when its command ends; Ctrl-C ends `edgespec serve`",
    "version": "`edgespec --version` shows it",
}
"""Commands of others: what to type instead."""

SPELLINGS = {
    "-a": "--alias",
    "-hf": "-m hf:",
    "-hfd": "-md hf:",
    "-hfr": "-m hf:",
    "-hfrd": "-md hf:",
    "-r": "--stop",
    "-sys": "--system",
    "--context-length": "--ctx-size",
    "--draft": "--spec-draft-n-max",
    "--draft-max": "--spec-draft-n-max",
    "--draft-min": "--spec-draft-n-min",
    "--draft-n": "--spec-draft-n-max",
    "--draft-n-min": "--spec-draft-n-min",
    "--draft-p-min": "--spec-draft-p-min",
    "--gpu-layers": "--n-gpu-layers",
    "--gpu-layers-draft": "--n-gpu-layers-draft",
    "--hf-repo": "-m hf:",
    "--hf-repo-draft": "-md hf:",
    "--max-model-len": "--ctx-size",
    "--max-new-tokens": "--n-predict",
    "--model-draft": "--draft-model",
    "--n-ctx": "--ctx-size",
    "--num-ctx": "--ctx-size",
    "--num-gpu": "--n-gpu-layers",
    "--num-predict": "--n-predict",
    "--num-speculative-tokens": "--spec-draft-n-max",
    "--num-thread": "--threads",
    "--predict": "--n-predict",
    "--repetition-penalty": "--repeat-penalty",
    "--reverse-prompt": "--stop",
    "--served-model-name": "--alias",
    "--system-prompt": "--system",
    "--temperature": "--temp",
}
"""Options of others that mean the same as one of ours: `-hf X` is `-m hf:X`."""

_KINDS = "leave it out: `edgespec chat` keeps a conversation, `edgespec run` answers once"
_BATCHES = "batches are sized by edgespec; leave it out"
_SETTINGS = "each setting is an option of its own: --temp, --top-p, --seed, …"
_FILE = "name the file as well: -m hf:ORG/REPO/FILE.gguf"

HINTS = {
    "-b": _BATCHES,
    "-cnv": _KINDS,
    "-e": "the shell can write a line break: $'a\\nb'",
    "-hff": _FILE,
    "-i": _KINDS,
    "-no-cnv": _KINDS,
    "-o": _SETTINGS,
    "-p": "`edgespec run -p TEXT` answers once",
    "-s": "llama.cpp's -s is --seed here, llm's is --system",
    "-st": _KINDS,
    "-ub": _BATCHES,
    "--api-key": "others can see a command line; put the key into EDGESPEC_API_KEY or a file for "
    "--api-key-file",
    "--batch-size": _BATCHES,
    "--chat-template": "the model's own template is used; `run --raw` uses none",
    "--conversation": _KINDS,
    "--format": "--json prints JSON",
    "--hf-file": _FILE,
    "--interactive": _KINDS,
    "--jinja": "chat templates are always rendered; leave it out",
    "--keepalive": "a model stays loaded while `edgespec serve` runs",
    "--mlock": "the system decides which weights stay in memory; leave it out",
    "--no-mmap": "weights are always mapped into memory; leave it out",
    "--option": _SETTINGS,
    "--prompt": "`edgespec run -p TEXT` answers once",
    "--single-turn": _KINDS,
    "--speculative-config": "--spec-type, --draft-model and --spec-draft-n-max set it",
    "--ubatch-size": _BATCHES,
    "--verbose": "figures follow every answer unless -q is given; `edgespec -v COMMAND` logs",
}
"""Options of others that are not ours: what to do."""

VARIABLES = {
    "LLAMA_API_KEY": "EDGESPEC_API_KEY",
    "LLAMA_ARG_ALIAS": "EDGESPEC_ALIAS",
    "LLAMA_ARG_CTX_SIZE": "EDGESPEC_CTX_SIZE",
    "LLAMA_ARG_HF_REPO": "EDGESPEC_MODEL=hf:…",
    "LLAMA_ARG_HOST": "EDGESPEC_HOST",
    "LLAMA_ARG_MODEL": "EDGESPEC_MODEL",
    "LLAMA_ARG_N_GPU_LAYERS": "EDGESPEC_N_GPU_LAYERS",
    "LLAMA_ARG_PORT": "EDGESPEC_PORT",
    "LLAMA_ARG_THREADS": "EDGESPEC_THREADS",
    "OLLAMA_CONTEXT_LENGTH": "EDGESPEC_CTX_SIZE",
    "OLLAMA_HOST": "EDGESPEC_HOST and EDGESPEC_PORT",
    "OLLAMA_MODELS": "EDGESPEC_MODELS",
    "OLLAMA_ORIGINS": "EDGESPEC_CORS_ORIGIN",
}
"""Environment variables of other servers, and ours."""


class HabitGroup(ErrorGroup):
    """A group of commands in which a text alone is a prompt, and words of other programs help."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `run` before what is no command but its argument."""
        own = {name for param in self.get_params(ctx) for name in param.opts}
        flags = own | {"-vv", "-vvv"}
        at = next((i for i, word in enumerate(args) if word not in flags), None)
        if at is not None and not ctx.resilient_parsing and self._is_for_run(ctx, args[at]):
            args = [*args[:at], "run", *args[at:]]
        return super().parse_args(ctx, args)

    def _is_for_run(self, ctx: click.Context, word: str) -> bool:
        """Return True for an option, a text or a model; False for a command, misspelt ones too."""
        if self.resolve_command_name(ctx, word) or word in COMMANDS:
            return False
        return not difflib.get_close_matches(word, [*self.commands, *self.alias2name], cutoff=0.7)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, and give its options the names that it knows."""
        if args[0] in COMMANDS and not ctx.resilient_parsing:
            raise click.UsageError(f"there is no command {args[0]}: {COMMANDS[args[0]]}")
        name, command, rest = super().resolve_command(ctx, args)
        if command is None or ctx.resilient_parsing:
            return name, command, rest
        if name == "serve":
            remark_variables(os.environ)
        return name, command, respelled(ctx, command, rest)


def respelled(ctx: click.Context, command: click.Command, args: list[str]) -> list[str]:
    """Return arguments with options of other programs under our names.

    Raises UsageError with a hint for those that we do not have.
    """
    own = {name for param in command.get_params(ctx) for name in param.opts}
    found: list[str] = []
    prefix = ""  # of the next argument
    for i, word in enumerate(args):
        name, equals, value = word.partition("=")
        ours, _, before = SPELLINGS.get(name, "").partition(" ")
        if word == "--":
            return found + args[i:]
        if prefix or name in own or not word.startswith("-"):
            found.append(prefix + word)
            prefix = ""
        elif ours in own:
            found.append(ours)
            found += [before + value] if equals else []
            prefix = "" if equals else before
        elif name in HINTS:
            raise click.UsageError(f"`edgespec {command.name}` has no {name}: {HINTS[name]}")
        else:
            found.append(word)
    return found


def remark_variables(environment: Mapping[str, str]) -> None:
    """Say which variables of other servers are set, are not read, and have a name of ours."""
    for theirs, ours in VARIABLES.items():
        if theirs in environment and ours.partition(" ")[0].partition("=")[0] not in environment:
            say(f"note: {theirs} is set and is not read; here it is {ours}", err=True)
