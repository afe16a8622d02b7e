"""The commands of a chat, which begin with a slash."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from . import conversation, tools
from .conversation import Conversation


class Leave(Exception):
    """Raised when the user leaves the chat."""


def perform(talk: Conversation, line: str) -> bool:
    """Run the command in `line`; return True if it gave an answer that Ctrl-C ended.

    Raises UsageError for an unknown command, and Leave for /exit.
    """
    name, _, rest = line.partition(" ")
    name = _ELSEWHERE.get(name, name)
    if name not in COMMANDS:
        from edgespec.config import did_you_mean

        raise click.UsageError(
            f"unknown command {name}; {did_you_mean(name, COMMANDS)} "
            "(to send a text that begins with /, write //)"
        )
    return bool(_COMMANDS[name][0](talk, rest.strip()))


def _help(talk: Conversation, rest: str) -> None:
    for name, (_, takes, what) in _COMMANDS.items():
        talk.screen.remark(f"{f'{name} {takes}':<17} {what}", indent=18)
    talk.screen.remark(f"{'Ctrl-C':<17} end the answer; Ctrl-D leaves the chat", indent=18)


def _stats(talk: Conversation, rest: str) -> None:
    if talk.last is None:
        talk.screen.remark("no answer yet")
        return
    stats, all_ = talk.last.stats, talk.totals
    remark = talk.screen.remark
    remark(f"model: {talk.model} · {talk.summary()}")
    remark(f"sampling: {talk.sampled()}")
    for line in conversation.buffers(talk):
        remark(line)
    remark(
        f"last answer: {stats.num_prompt_tokens} prompt tokens ({stats.num_cached_tokens} from "
        f"the cache), {stats.num_emitted_tokens} emitted in {stats.num_spec_steps} steps, "
        f"{stats.total_s:.2f} s"
    )
    if stats.num_repeated_tokens:
        remark(
            f"  {stats.num_repeated_tokens} tokens at its end repeat the same words: that drafts "
            "come true there is no gain"
        )
    for source, n in stats.drafts_by_source.items():
        remark(
            f"  {source}: {n['accepted']} of {n['drafted']} drafted accepted, {n['steps']} steps"
        )
    if not stats.num_draft_tokens:
        remark(f"  nothing drafted{f', speculation {why}' if (why := stats.speculation) else ''}")
    else:
        steps = ", ".join(f"{i} in {n}" for i, n in enumerate(stats.acceptance_histogram) if n)
        remark(
            f"  drafted tokens accepted: {steps} steps; "
            f"{stats.mean_acceptance_length:.2f} tokens a step on average"
        )
    remark(
        f"this session: answers {all_['answers']:.0f}, {all_['tokens']:.0f} tokens in "
        f"{all_['steps']:.0f} steps, {all_['accepted']:.0f} of {all_['drafted']:.0f} drafted "
        f"accepted, {all_['seconds']:.1f} s"
    )


def _spec(talk: Conversation, rest: str) -> None:
    if rest not in ("", "on", "off"):
        raise click.UsageError(f"/spec takes on or off, got {rest!r}")
    if rest:
        talk.speculate = rest == "on"
    how = talk.engine.describe()["speculation"] if talk.speculate else "off: by /spec off"
    talk.screen.remark(f"speculation: {how}")


def _think(talk: Conversation, rest: str) -> None:
    if rest not in ("", "on", "off"):
        raise click.UsageError(f"/think takes on or off, got {rest!r}")
    if not talk.engine.answer_format.reasoning:
        raise click.UsageError("this model answers without thinking, so /think changes nothing")
    if rest == "off" and not talk.chat.may_skip_reasoning:
        raise click.UsageError("this model has no switch for thinking, so it cannot be turned off")
    talk.reasoning = {"reasoning_budget": 0} if rest == "off" else {}
    talk.screen.remark(
        "thinking is off: the model answers at once"
        if talk.reasoning
        else "thinking is on, for a model that can: it reasons before it answers"
    )


def _system(talk: Conversation, rest: str) -> None:
    if rest:
        talk.chat.system = None if rest == "none" else rest
    text = talk.chat.system
    talk.screen.remark("no system prompt" if text is None else f"system prompt: {text}")


def _tools(talk: Conversation, rest: str) -> None:
    if rest == "off":
        talk.chat.tools = talk.functions = ()
    elif rest:
        talk.chat.tools = functions = tools.functions_of(_expanded(rest))
        talk.functions = functions
    for line in tools.listed(talk.chat.tools) or ["no tools"]:
        talk.screen.remark(line)


def _image(talk: Conversation, rest: str) -> None:
    import edgespec

    if rest == "none":
        talk.pictures = []
    elif rest:
        talk.engine.check_sees()
        talk.pictures = [*talk.pictures, edgespec.picture(_expanded(rest))]
    for shown in talk.pictures:
        talk.screen.remark(f"{shown.name}, {shown.width}x{shown.height} pixels")
    said = "shown with your next message" if talk.pictures else "no picture; /image FILE takes one"
    talk.screen.remark(said)


def _reset(talk: Conversation, rest: str) -> None:
    talk.chat.reset()
    talk.unanswered = ""
    talk.pictures = []
    talk.said_why = ""
    if talk.keeper:
        talk.keeper.renew()
    talk.screen.remark("the conversation is empty; the system prompt stays")


def _save(talk: Conversation, rest: str, *, overwrite: bool = False) -> None:
    path = _path("/save", rest)
    conversation.save(talk, path, overwrite=overwrite)
    talk.screen.remark(f"{len(talk.chat.messages)} messages saved to {path}")


def _save_over(talk: Conversation, rest: str) -> None:
    _save(talk, rest, overwrite=True)


def _load(talk: Conversation, rest: str) -> None:
    remarks = conversation.load(talk, _path("/load", rest))
    if talk.screen.terminal:
        conversation.show_last(talk)
    for remark in remarks:
        talk.screen.remark(remark)
    if talk.keeper:
        talk.keeper.renew()


def _set(talk: Conversation, rest: str) -> None:
    from . import settings

    rest = rest.removeprefix("parameter ").strip()  # as in Ollama
    defaults = talk.engine.sampling.params({})
    if not rest:
        for line in settings.listed(talk.sampling, defaults):
            talk.screen.remark(line, indent=19)
        return
    talk.sampling, line = settings.change(talk.sampling, rest, defaults)
    talk.screen.remark(line, indent=19)


def _model(talk: Conversation, rest: str) -> None:
    if rest:
        talk.change_model(rest)
    talk.screen.remark(f"{talk.model} · {talk.summary()}")


def _continue(talk: Conversation, rest: str) -> bool:
    from .chat import go_on  # here, because that module imports this one

    return go_on(talk)


def _retry(talk: Conversation, rest: str) -> bool:
    from .chat import retry

    return retry(talk)


def _exit(talk: Conversation, rest: str) -> None:
    raise Leave


def _path(command: str, rest: str) -> Path:
    if not rest:
        raise click.UsageError(f"{command} needs a file name")
    return _expanded(rest)


def _expanded(path: str) -> Path:
    from edgespec import named_files

    return named_files.expanded(path)


_COMMANDS: dict[str, tuple[Callable[[Conversation, str], bool | None], str, str]] = {
    "/help": (_help, "", "this list"),
    "/stats": (_stats, "", "figures of the last answer and of the session"),
    "/continue": (_continue, "", "continue an answer that was cut off"),
    "/retry": (_retry, "", "send a message again that was not answered"),
    "/set": (_set, "[NAME VALUE]", "show or set the sampling, such as temp 0.7; default undoes it"),
    "/model": (_model, "[NAME]", "go on with another model, or show which one it is"),
    "/spec": (_spec, "on|off", "speculate, or decode plainly; answers are as likely as before"),
    "/think": (_think, "[off]", "let the model reason before it answers, or do not"),
    "/system": (_system, "[TEXT]", "show or set the system prompt; none removes it"),
    "/tools": (
        _tools,
        "[FILE.py]",
        "run a file and offer its functions, each call with your consent; off ends it",
    ),
    "/image": (_image, "FILE", "show a picture with your next message; none takes it back"),
    "/reset": (_reset, "", "forget the conversation"),
    "/save": (_save, "FILE", "save the conversation to a file"),
    "/save!": (_save_over, "FILE", "the same, and overwrite an existing file"),
    "/load": (_load, "FILE", "continue a saved conversation"),
    "/exit": (_exit, "", "leave, like Ctrl-D"),
}

COMMANDS = list(_COMMANDS)
# names of commands in other programs
_ELSEWHERE = {"/bye": "/exit", "/quit": "/exit", "/clear": "/reset", "/?": "/help"}
