"""Commands and options of Ollama, llama.cpp and llm.

Each one works here too, or the error names the command or option to use instead.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Mapping

import click

from .errors import ErrorGroup
from .render import is_terminal, say

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
    "llama-bench": "`edgespec bench` measures",
    "llama-cli": "`edgespec chat` keeps a conversation, `edgespec run` answers once",
    "llama-completion": '`edgespec run --raw "TEXT"` continues a text',
    "llama-embedding": "edgespec writes answers, no embeddings",
    "llama-lookup": "`edgespec run --spec-type suffix` drafts from the text",
    "llama-perplexity": "`edgespec bench` measures speed; llama.cpp itself measures perplexity",
    "llama-quantize": "`edgespec pull MODEL:Q8_0` fetches another format, `edgespec convert` makes "
    "ONNX",
    "llama-run": '`edgespec run "TEXT"` answers a prompt',
    "llama-server": "`edgespec serve` serves a model",
    "llama-speculative": '`edgespec run -md DRAFT "TEXT"` drafts with a model',
    "llama-speculative-simple": '`edgespec run -md DRAFT "TEXT"` drafts with a model',
    "llama-tokenize": "`edgespec serve` has POST /tokenize",
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
"""Commands of other programs, each with advice on what to type instead."""

ALONE = {
    "benchmark": "`edgespec bench` measures",
    "config": "settings are options and EDGESPEC_… variables, see `edgespec COMMAND --help`",
    "exit": "each command ends by itself; in a chat Ctrl-D leaves",
    "import": "give the file's path wherever a model is asked for",
    "init": "nothing has to be set up; `edgespec chat` begins",
    "install": "`edgespec pull MODEL` downloads a model",
    "launch": "`edgespec serve` serves a model",
    "login": "there is no account; the hub's own `hf auth login`, or HF_TOKEN, opens gated models",
    "logout": "there is no account; `hf auth logout` leaves the hub's",
    "quit": "each command ends by itself; in a chat Ctrl-D leaves",
    "remove": "`edgespec rm MODEL` deletes a model",
    "setup": "nothing has to be set up; `edgespec doctor` checks this device",
    "signin": "there is no account; the hub's own `hf auth login`, or HF_TOKEN, opens gated models",
    "start": "`edgespec chat` begins a chat, `edgespec serve` a server",
    "test": "`edgespec doctor` checks this device",
    "uninstall": "`edgespec rm MODEL` deletes a model, `pip uninstall edgespec` the program",
    "update": "`pip install --upgrade edgespec` updates the program, `edgespec pull MODEL` fetches "
    "a model",
    "upgrade": "`pip install --upgrade edgespec` updates the program",
}
"""Words that are meant as a command if nothing follows them, each with advice on what to type."""

_BARE = "edgespec.bare-word"  # key in a context's meta data: the first word, if it is no command
_LIKE_A_COMMAND = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")

SPELLINGS = {
    "-a": "--alias",
    "-hf": "-m hf:",
    "-hfd": "-md hf:",
    "-hfr": "-m hf:",
    "-hfrd": "-md hf:",
    "-mm": "--mmproj",
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
"""Options of other programs, and the same options here: `-hf X` is `-m hf:X`."""

_KINDS = "leave it out: `edgespec chat` keeps a conversation, `edgespec run` answers once"
_BATCHES = "batches are sized by edgespec; leave it out"
_SETTINGS = "each setting is an option of its own: --temp, --top-p, --seed, …"
_FILE = "name the file as well: -m hf:ORG/REPO/FILE.gguf"
_CONTEXT = "how positions are scaled is read from the model's file; -c sets the context length"
_SOUND = "models read text and pictures here, no sound; leave it out"
_PROJECTOR = "download the file and name its path: --mmproj FILE"
_LORA = (
    "adapters are not applied when a model is loaded; merge it into the model first, for "
    "example with llama.cpp's llama-export-lora"
)
_PLACES = "-ngl N puts the first N layers on the GPU; single tensors are not placed by hand"
_ONE_GPU = "--device names the GPUs to use (-dev Vulkan0), llama.cpp divides a model among them"
_SAMPLERS = "--temp, --top-k, --top-p, --min-p and the penalties decide; leave it out"
_EMBEDDINGS = "edgespec writes answers, no embeddings; llama-server --embedding does that"
_TOGETHER = (
    "`edgespec serve --slots N` gives N answers at once, and always verifies devices together; "
    "leave it out"
)
_NGRAMS = (
    "the longest earlier passage that fits is taken, so no length is set; --spec-draft-n-max and "
    "--spec-draft-n-min bound the draft"
)
_CACHE_FILES = "--draft-corpus PATH drafts from documents, --draft-memory disk from kept answers"
_DEVICES = "`edgespec run` gives one answer; `edgespec serve --slots N` gives N answers at once"

HINTS = {
    "-b": _BATCHES,
    "-cb": _TOGETHER,
    "-cmoe": _PLACES,
    "-cnv": _KINDS,
    "-e": "the shell can write a line break: $'a\\nb'",
    "-hff": _FILE,
    "-i": _KINDS,
    "-lcd": _CACHE_FILES,
    "-lcs": _CACHE_FILES,
    "-kvo": "the KV cache is where the layers are; leave it out",
    "-mg": _ONE_GPU,
    "-mu": "download the file and name its path, or take it from the hub: -m hf:ORG/REPO/FILE.gguf",
    "-ncmoe": _PLACES,
    "-nkvo": "the KV cache is where the layers are; leave it out",
    "-no-cnv": "`edgespec run --raw` continues a text without the chat template",
    "-nocb": _TOGETHER,
    "-np": _DEVICES,
    "-o": _SETTINGS,
    "-ot": _PLACES,
    "-p": "`edgespec run -p TEXT` answers once",
    "-s": "llama.cpp's -s is --seed here, llm's is --system",
    "-sm": _ONE_GPU,
    "-st": _KINDS,
    "-ts": _ONE_GPU,
    "-ub": _BATCHES,
    "--api-key": "others can see a command line; put the key into EDGESPEC_API_KEY or a file for "
    "--api-key-file",
    "--audio": _SOUND,
    "--batch-size": _BATCHES,
    "--chat-template": "the model's own template is used; `run --raw` uses none",
    "--chat-template-file": "the model's own template is used; `run --raw` uses none",
    "--cont-batching": _TOGETHER,
    "--conversation": _KINDS,
    "--cpu-moe": _PLACES,
    "--dry-multiplier": _SAMPLERS,
    "--dynatemp-range": _SAMPLERS,
    "--embedding": _EMBEDDINGS,
    "--embeddings": _EMBEDDINGS,
    "--format": "--json prints JSON",
    "--hf-file": _FILE,
    "--interactive": _KINDS,
    "--jinja": "chat templates are always rendered; leave it out",
    "--keep": "the system prompt and the newest turns stay when the context is full; leave it out",
    "--keepalive": "a model stays loaded while `edgespec serve` runs",
    "--lora": _LORA,
    "--lora-scaled": _LORA,
    "--lookup-cache-dynamic": _CACHE_FILES,
    "--lookup-cache-static": _CACHE_FILES,
    "--lookup-ngram-max": _NGRAMS,
    "--lookup-ngram-min": _NGRAMS,
    "--main-gpu": _ONE_GPU,
    "--metrics": "`edgespec serve` always has /metrics; --metrics-key-file opens it to others",
    "--mirostat": _SAMPLERS,
    "--mirostat-ent": _SAMPLERS,
    "--mirostat-lr": _SAMPLERS,
    "--mlock": "the system decides which weights stay in memory; leave it out",
    "--mmproj-url": _PROJECTOR,
    "--model-url": "download the file and name its path, or take it from the hub: "
    "-m hf:ORG/REPO/FILE.gguf",
    "--n-cpu-moe": _PLACES,
    "--no-cont-batching": _TOGETHER,
    "--no-mmap": "weights are always mapped into memory; leave it out",
    "--no-mmproj": "--mmproj none lets a model read text alone",
    "--no-warmup": "nothing is evaluated before the prompt; leave it out",
    "--numa": "`numactl --cpunodebind=0 --membind=0 edgespec …` keeps edgespec on one node",
    "--option": _SETTINGS,
    "--override-kv": "what a model's file says is used as it is; leave it out",
    "--override-tensor": _PLACES,
    "--parallel": _DEVICES,
    "--prompt": "`edgespec run -p TEXT` answers once",
    "--prompt-cache-all": "--prompt-cache disk keeps prompts and answers that were read",
    "--prompt-cache-ro": "--prompt-cache disk keeps what was read, --prompt-cache off nothing",
    "--repeat-last-n": "the penalties look at the whole text; leave it out",
    "--reranking": _EMBEDDINGS,
    "--rope-freq-base": _CONTEXT,
    "--rope-freq-scale": _CONTEXT,
    "--rope-scale": _CONTEXT,
    "--rope-scaling": _CONTEXT,
    "--samplers": _SAMPLERS,
    "--sampling-seq": _SAMPLERS,
    "--single-turn": _KINDS,
    "--slot-save-path": "--prompt-cache disk keeps prompts that were read on this disk",
    "--spec-ngram-min-hits": _NGRAMS,
    "--spec-ngram-size-m": _NGRAMS,
    "--spec-ngram-size-n": _NGRAMS,
    "--speculative-config": "--spec-type, --draft-model and --spec-draft-n-max set it",
    "--split-mode": _ONE_GPU,
    "--tensor-split": _ONE_GPU,
    "--typical": _SAMPLERS,
    "--ubatch-size": _BATCHES,
    "--verbose": "figures follow every answer unless -q is given; `edgespec -v COMMAND` logs",
    "--verbose-prompt": "`edgespec -vv run` logs; POST /tokenize of `edgespec serve` shows the "
    "tokens of a prompt",
    "--xtc-probability": _SAMPLERS,
    "--yarn-orig-ctx": _CONTEXT,
}
"""Options of other programs that do not exist here, each with advice on what to do instead."""

_OF_COMMANDS = {
    ("convert", "-o"): "what is made is the second argument: `edgespec convert SOURCE OUT`",
}
"""Other advice for an option of HINTS, if it is given to this command."""

_SWITCHES = {"-fa": "on", "--flash-attn": "on"}  # options that need no value in other programs

_OF_THE_TEXT = "which drafts from the text so far"
_OF_A_MODEL = "which uses the draft model or trained head that -md names"

SPEC_TYPES = {
    "draft": ("draft-model", _OF_A_MODEL),
    "draft-dflash": ("draft-model", _OF_A_MODEL),
    "draft-eagle3": ("draft-model", _OF_A_MODEL),
    "draft-mtp": ("draft-model", _OF_A_MODEL),
    "draft-simple": ("draft-model", _OF_A_MODEL),
    "eagle3": ("draft-model", _OF_A_MODEL),
    "mtp": ("draft-model", _OF_A_MODEL),
    "ngram-cache": ("suffix,memory", "which draft from the text so far and from earlier answers"),
    "ngram-map-k": ("suffix", _OF_THE_TEXT),
    "ngram-map-k4v": ("suffix", _OF_THE_TEXT),
    "ngram-mod": ("suffix", _OF_THE_TEXT),
    "ngram-simple": ("suffix", _OF_THE_TEXT),
}
"""Speculative methods of llama.cpp, each with the methods to use here and a description of them."""

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
"""Environment variables of other servers, and the ones to use here."""


class HabitGroup(ErrorGroup):
    """A command group that takes a text without a command as a prompt, and knows the commands and
    options of other programs.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert `run` if the first word is not a command but a prompt, a model or an option of
        `run`.
        """
        own = {name for param in self.get_params(ctx) for name in param.opts}
        flags = own | {"-vv", "-vvv"}
        at = next((i for i, word in enumerate(args) if word not in flags), None)
        if at is not None and not ctx.resilient_parsing and self._is_for_run(ctx, args[at]):
            ctx.meta[_BARE] = args[at]
            args = [*args[:at], "run", *args[at:]]
        return super().parse_args(ctx, args)

    def _is_for_run(self, ctx: click.Context, word: str) -> bool:
        """Return True for an option, a text or a model, False for a (misspelt) command."""
        if self.resolve_command_name(ctx, word) or word in COMMANDS:
            return False
        return not difflib.get_close_matches(word, [*self.commands, *self.alias2name], cutoff=0.7)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, and replace options of other programs by its own."""
        if args[0] in COMMANDS and not ctx.resilient_parsing:
            raise click.UsageError(f"there is no command {args[0]}: {COMMANDS[args[0]]}")
        name, command, rest = super().resolve_command(ctx, args)
        if command is None or ctx.resilient_parsing:
            return name, command, rest
        if name == "serve":
            remark_devices(rest)
        return name, command, respelled(ctx, command, rest)


def refuse_bare(ctx: click.Context, prompt: str) -> None:
    """Raise UsageError if the prompt is one word that was typed in place of a command and looks
    like one. `edgespec update`, for example, is not meant as a question to a model.
    """
    if prompt != ctx.meta.get(_BARE) or not _LIKE_A_COMMAND.fullmatch(prompt):
        return
    group = ctx.find_root().command
    assert isinstance(group, click.Group)
    known = [*group.commands, *COMMANDS, *ALONE]
    near = difflib.get_close_matches(prompt.lower(), known, n=1, cutoff=0.6)
    word = near[0] if near else ""
    instead = ALONE.get(word) or COMMANDS.get(word)
    hint = f"did you mean `edgespec {word}`?" if word in group.commands else instead
    raise click.UsageError(
        f"no such command {prompt!r}: {hint or '`edgespec --help` lists them'}; as a prompt: "
        f"edgespec run {prompt}",
        ctx.find_root(),
    )


def respelled(ctx: click.Context, command: click.Command, args: list[str]) -> list[str]:
    """Return arguments with the options of other programs replaced by ours.

    Raises UsageError with a hint for known options that have no replacement.
    """
    own = {name for param in command.get_params(ctx) for name in param.opts}
    words: list[str] = []
    prefix = ""  # to put before the next argument
    for i, word in enumerate(args):
        name, equals, value = word.partition("=")
        ours, _, before = SPELLINGS.get(name, "").partition(" ")
        if word == "--":
            return words + args[i:]
        if prefix or name in own or not word.startswith("-"):
            words.append(prefix + word)
            prefix = ""
            if word in _SWITCHES and _is_bare(args[i + 1 :]):
                words.append(_SWITCHES[word])
        elif ours in own:
            words.append(ours)
            words += [before + value] if equals else []
            prefix = "" if equals else before
        elif name in HINTS:
            hint = _OF_COMMANDS.get((command.name, name), HINTS[name])
            raise click.UsageError(f"`edgespec {command.name}` has no {name}: {hint}")
        else:
            words.append(word)
    return words


def _is_bare(following: list[str]) -> bool:
    """Return True if an option has no value: nothing or a different option follows it."""
    return not following or following[0].startswith("-")


def remark_devices(args: list[str]) -> None:
    """If -np is given, say that it counts devices here. In llama.cpp it counts the answers that are
    generated together.

    This is only said on a terminal: programs that read stderr expect a JSON object on each line.
    """
    if is_terminal(sys.stderr) and any(word.startswith("-np") for word in args):
        say(
            "note: -np is the number of devices whose drafts are verified together; --slots is the "
            "number of answers over the APIs at once",
            err=True,
        )


def remark_variables(environment: Mapping[str, str]) -> None:
    """Say which variables of other servers are set but not read, and which ones to set instead."""
    for theirs, ours in VARIABLES.items():
        if theirs in environment and ours.partition(" ")[0].partition("=")[0] not in environment:
            say(f"note: {theirs} is set and is not read; here it is {ours}", err=True)
