"""The state of a chat in the terminal, and the format of its file."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import SAMPLING
from .render import Screen, counted
from .render import name as shown

if TYPE_CHECKING:
    import edgespec

    from .kept_chats import Keeper

FORMAT, VERSION = "edgespec-chat", 1
_MOST_SHOWN = 2000  # most characters that are shown of an earlier answer
_MOST_BYTES = 256 << 20  # most bytes of a saved chat


@dataclass
class Conversation:
    """A chat with its engine and settings.

    model: the model's name as the user gave it. sampling: the fields of SamplingParams that the
    user has set. quiet: show no figures. speculate: False decodes plainly. repetition: the field
    that ends an answer which repeats itself; it is used if `sampling` has no max_tokens. reasoning:
    the fields that limit reasoning. suggestion: returns a line to show after an answer, "" for
    none. last: the last answer. unanswered: a sent message that has no answer yet. pictures: those
    that are shown with the next message. totals: sums over the answers of this session. said_why:
    the last reason that the figures gave for drafting nothing; only a different reason is shown
    again. keeper: keeps the conversation on this disk, None if it is not kept. functions: the
    functions that the model may call. change_model: replaces the model by the one with the given
    name.
    """

    engine: edgespec.Engine
    chat: edgespec.Chat
    model: str
    sampling: dict[str, Any]
    screen: Screen
    quiet: bool = False
    speculate: bool = True
    repetition: Mapping[str, Any] = field(default_factory=dict)
    reasoning: dict[str, Any] = field(default_factory=dict)
    suggestion: Callable[[], str] = str
    last: edgespec.Completion | None = None
    unanswered: str = ""
    pictures: list[edgespec.Picture] = field(default_factory=list)
    totals: dict[str, float] = field(default_factory=dict)
    said_why: str = ""
    keeper: Keeper | None = None
    functions: Sequence[Callable[..., Any]] = ()
    change_model: Callable[[str], None] = lambda name: None

    def count(self, completion: edgespec.Completion) -> None:
        """Add an answer to the figures of this session."""
        stats = completion.stats
        self.last = completion
        for name, value in (
            ("answers", 1),
            ("tokens", stats.num_emitted_tokens),
            ("steps", stats.num_spec_steps),
            ("drafted", stats.num_draft_tokens),
            ("accepted", stats.num_accepted_draft_tokens),
            ("seconds", stats.total_s),
        ):
            self.totals[name] = self.totals.get(name, 0) + value

    def settings(self) -> dict[str, Any]:
        """Return the fields of SamplingParams for the next answer."""
        own = {} if "max_tokens" in self.sampling else dict(self.repetition)
        plain = {} if self.speculate else {"disable_spec_decode": True}
        return self.sampling | self.reasoning | own | plain

    def sampled(self) -> str:
        """Return a line that describes the sampling of answers and the source of its settings."""
        return self.engine.sampling.describe(self.sampling)

    def summary(self) -> str:
        """Return a short description of the loaded engine: context, device, speculation, draft."""
        about = self.engine.describe()
        draft = about.get("draft")
        return " · ".join(
            [f"context {about['n_ctx']}", *_where(about), f"speculation: {about['speculation']}"]
            + ([f"draft {draft['file']}"] if draft else [])
        )


def _where(about: dict[str, Any]) -> list[str]:
    """Return a phrase for where the target runs, [] if the engine does not tell."""
    placement = (about.get("model") or {}).get("placement")
    if not placement:
        return []
    threads = counted(about["model"]["n_threads"], "thread")
    if provider := placement.get("provider"):
        return [f"onnxruntime on {provider}, {threads}"]
    return [placement.get("layers", f"on the CPU, {threads}")]


def buffers(talk: Conversation) -> list[str]:
    """Return a line for each model with the buffers that its engine has allocated."""
    about = talk.engine.describe()
    models = {which: about.get(which) or {} for which in ("model", "draft")}
    return [
        f"  buffers of the {which}: "
        + ", ".join(f"{name} {size}" for name, size in model["placement"].items())
        for which, model in models.items()
        if model.get("placement")
    ]


def save(talk: Conversation, path: Path, *, overwrite: bool) -> None:
    """Write the conversation to a file as JSON, completely or not at all. Raises UsageError if that
    fails, or if the file exists and `overwrite` is False.
    """
    from edgespec import kept_files

    target = path.resolve()  # so that a link stays a link
    if not target.parent.is_dir():
        raise click.UsageError(f"{path} cannot be written: there is no folder {target.parent}")
    if target.exists() and not target.is_file():
        raise click.UsageError(f"{path} is not a file; name one to write the conversation to")
    if target.exists() and not overwrite:
        raise click.UsageError(f"{path} exists already; /save! {path} overwrites it")
    try:
        kept_files.replace(target, [encoded(talk, talk.model)])
    except OSError as error:
        why = kept_files.obstacle(error, f"name a file such as ~/{target.name},")
        raise click.UsageError(f"{path} cannot be written: {why}") from None


def encoded(
    talk: Conversation, model: str, unanswered: str = "", *, is_answering: bool = False
) -> bytes:
    """Return a conversation as the JSON of its file.

    model: the name of the model to save. unanswered: a message without an answer, to save as well.
    is_answering: the last answer is not complete yet.
    """
    data = {"format": FORMAT, "version": VERSION, "model": model, "sampling": talk.sampling}
    data |= talk.chat.to_dict() | ({"unanswered": unanswered} if unanswered else {})
    data |= {"is_answering": True} if is_answering else {}
    return (json.dumps(data, indent=2, default=list) + "\n").encode()


def load(talk: Conversation, path: Path) -> list[str]:
    """Continue a saved conversation; return remarks for the user.

    If the file cannot be used, this raises UsageError and changes nothing.
    """
    data = read(path)
    sampling = _sampling(data.get("sampling", {}), path)
    n_vocab = talk.engine.tokenizer.vocab_size
    if wrong := [token for token in sampling.get("logit_bias", {}) if token >= n_vocab]:
        raise click.UsageError(
            f"{path}: logit_bias names token {wrong[0]}; ids of this model are 0 … {n_vocab - 1}"
        )
    try:
        talk.chat.load_dict({key: data.get(key) for key in ("system", "messages")})
    except ValueError as error:
        raise click.UsageError(f"{path}: {error}") from error
    talk.unanswered = unanswered(data)
    remarks = [f"{len(talk.chat.messages)} messages from {path}"]
    if talk.unanswered:
        begin = _beginning(talk.unanswered)
        remarks.append(f"its last message was not answered; /retry sends it again: {begin}")
    if data.get("is_answering") is True:
        remarks.append(f"its last answer was not complete when the program ended; {_rest(talk)}")
    if data.get("model") != talk.model:
        saved_with = shown(str(data.get("model")))
        remarks.append(f"saved with {saved_with:.200}, this is {talk.model}")
    if sampling != talk.sampling:
        talk.sampling = sampling
        own = [f"{name} {sampling[each]}" for each, name in SAMPLING.items() if each in sampling]
        remarks.append(f"sampling as saved: {', '.join(own) or talk.sampled()}")
    talk.last, talk.said_why = None, ""
    return remarks


def _rest(talk: Conversation) -> str:
    """Return a hint on how to get the rest of the last answer."""
    if talk.chat.messages and talk.chat.messages[-1].get("reasoning_content"):
        return "ask for the rest, or ask again"  # an answer with reasoning cannot be continued
    return "/continue goes on with it"


def show_last(talk: Conversation) -> None:
    """Show the last message of the user, and the answers to it."""
    from edgespec.chat.pictures import text_of

    said = talk.chat.messages
    begin = max((i for i, each in enumerate(said) if each["role"] == "user"), default=len(said))
    for each in said[begin:]:
        if each["role"] == "user":
            talk.screen.remark(f"> {_beginning(text_of(each['content']))}")
        elif each["role"] == "assistant" and each["content"]:
            is_long = len(each["content"]) > _MOST_SHOWN
            talk.screen.text("… " * is_long + each["content"][-_MOST_SHOWN:])
            talk.screen.end_line()


def _beginning(text: str) -> str:
    return textwrap.shorten(shown(text), 200, placeholder=" …")


def unanswered(data: Mapping[str, Any]) -> str:
    """Return the unanswered message of a saved chat, "" if there is none."""
    text = data.get("unanswered")
    return text if isinstance(text, str) else ""


def read(path: Path) -> dict[str, Any]:
    """Return the data of a saved chat. Raises UsageError if the file is not a saved chat."""
    from edgespec import kept_files

    try:
        text = kept_files.read(path, _MOST_BYTES)
    except OSError as error:
        raise click.UsageError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise click.UsageError(f"{path} is no saved chat: {error}") from error
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"{path} is no saved chat: it is not JSON") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise click.UsageError(
            f'{path} is JSON, but not a saved chat: "format" is not "{FORMAT}"; '
            "files written by /save are"
        )
    if data.get("version") != VERSION:
        raise click.UsageError(
            f"{path} has version {data.get('version')!r}, this program reads {VERSION}; "
            "use the edgespec that wrote it"
        )
    return data


def _sampling(saved: Any, path: Path) -> dict[str, Any]:
    """Return saved sampling settings with the types of SamplingParams. Raises UsageError."""
    import edgespec
    from edgespec.config import build

    if not isinstance(saved, Mapping):
        raise click.UsageError(f'{path}: "sampling" must be an object, got {saved!r:.80}')
    sampling = dict(saved)
    try:
        if "logit_bias" in sampling:
            bias = sampling["logit_bias"]
            sampling["logit_bias"] = {int(k): float(v) for k, v in bias.items()}
        if isinstance(sampling.get("stop"), list):
            sampling["stop"] = tuple(sampling["stop"])
        build(edgespec.SamplingParams, sampling)
    except (TypeError, ValueError, AttributeError) as error:
        raise click.UsageError(f'{path}: "sampling" is not usable: {error}') from error
    return sampling
