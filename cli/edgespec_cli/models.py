"""The commands `edgespec models` and `inspect`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import cloup

from .loading import entry_of, licence, looking_at_the_hub
from .options import json_option
from .parameters import ModelType
from .render import count, say, say_json, say_wrapped, size, status, table

if TYPE_CHECKING:
    import edgespec
    from edgespec.hub import Entry, ModelFile, Place, PublishedHead

_USES = ("chat", "code", "reasoning", "draft", "base")  # in the order of the list
_CONTEXTS = (2048, 4096, 8192, 16384, 32768, 65536, 131072)


@cloup.command()
@click.argument("reference", metavar="[NAME]", required=False, type=ModelType())
@json_option
def models(reference: str | None, as_json: bool) -> None:
    """List the models of the catalogue, or show one of them.

    With NAME, show this model, its files, and the draft models and trained heads that are known for
    it.
    """
    from edgespec import hub

    if reference is not None:
        name = reference.partition(":")[0]
        with looking_at_the_hub(name):
            entry = hub.entry(name)
        _show_entry(entry, as_json)
        return
    here = hub.places()
    rows = [_row(entry, here) for entry in hub.entries().values()]
    if as_json:
        say_json(rows)
        return
    say_to_take(here)
    rows.sort(key=lambda row: (_USES.index(row["use"]), not row["fast_enough"], -row["parameters"]))
    table(
        ("name", "for", "size", "memory", "tokens/s", "on disk", "licence", "drafts"),
        [
            (
                row["name"],
                row["use"] + ", pictures" * row["sees"],
                size(row["files"][0]["size"]),
                size(row["files"][0]["memory"]),
                f"{row['tokens_per_second']:.0f}" if row["fits"] else "too large",
                ", ".join(f["quantisation"] for f in row["files"] if f["path"]) or "no",
                row["licence"],
                ", ".join(row["drafts"]) or "–",
            )
            for row in rows
        ],
        drop=("drafts", "licence", "for", "memory", "on disk"),
    )
    say(
        f"memory: weights, {hub.N_CTX} tokens of context and work space · -c changes the context · "
        "tokens/s: expected on this device without drafts · `edgespec models NAME` shows one model",
        err=True,
    )


def say_to_take(here: list[Place]) -> None:
    """List the recommended models for this device, each with its strengths, size and speed."""
    from edgespec import hub

    where = " or ".join(f"{place.name}, {size(place.memory)} of memory free" for place in here)
    say(f"to take on this device ({where}):")
    say()
    for reference, description, about in hub.advice(here):
        say(f"  {reference}")
        say_wrapped(description, "    ")
        say_wrapped(about, "    ")
    say()


def _row(entry: Entry, here: list[Place]) -> dict[str, Any]:
    from edgespec import hub

    files = [
        {
            "quantisation": file.quantisation,
            "filename": file.filename,
            "size": file.size,
            "memory": entry.memory(file, hub.N_CTX),
            "path": _text(hub.resolve(f"{entry.name}:{file.quantisation}")),
            "projector": _projector_row(file.projector) if file.projector else None,
        }
        for file in entry.files
    ]
    pick = hub.pick(entry, entry.files[0], here)
    return {
        "name": entry.name,
        "title": entry.title,
        "description": entry.description,
        "use": entry.use,
        "sees": entry.sees,
        "parameters": entry.parameters,
        "context": entry.context,
        "licence": entry.licence,
        "licence_url": entry.licence_url,
        "drafts": list(entry.drafts),
        "heads": [_head_row(head) for head in entry.heads],
        "default": hub.chosen().partition(":")[0] == entry.name,
        "fits": pick is not None,
        "fast_enough": bool(pick and pick.is_fast_enough),
        "tokens_per_second": pick.speed if pick else None,
        "files": files,
    }


def _projector_row(file: ModelFile) -> dict[str, Any]:
    return {"filename": file.filename, "size": file.size}


def _head_row(head: PublishedHead) -> dict[str, Any]:
    return {"kind": head.kind, "reference": head.reference, "licence": head.licence or None}


def _show_entry(entry: Entry, as_json: bool) -> None:
    """Show one model with its files, and the draft models and heads for it."""
    from edgespec import hub

    row = _row(entry, hub.places())
    if as_json:
        say_json(row)
        return
    facts = {
        "name": f"{entry.name}: {entry.title}",
        "about": entry.description,
        "for": entry.use,
        "parameters": count(entry.parameters),
        "context": f"{entry.context} tokens",
        "licence": licence(entry),
        "drafts": ", ".join(entry.drafts) or "–",
    }
    for label, value in facts.items():
        say(f"{label:<12}{value}")
    for projector in filter(None, (file["projector"] for file in row["files"])):
        say(
            f"{'pictures':<12}with {projector['filename']}, {size(projector['size'])}, which comes "
            "with it; no published model that sees was run with edgespec yet"
        )
    for head in entry.heads:
        to_do = "" if head.file else ", a checkpoint to convert"
        known = licence(head) if head.licence else "see its card"
        say(f"{'head':<12}{head.kind}, {head.reference}{to_do}; licence: {known}")
    table(
        ("quantisation", "size", "memory", "file", "on disk"),
        [
            (
                f["quantisation"],
                size(f["size"]),
                size(f["memory"]),
                f["filename"],
                f["path"] or "no",
            )
            for f in row["files"]
        ],
        drop=("memory", "size"),
    )
    say(f"a file copied into {hub.models_dir()} under such a name is used as it is", err=True)


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


@cloup.command()
@click.argument("reference", type=ModelType())
@json_option
def inspect(reference: str, as_json: bool) -> None:
    """Show facts about a model, a trained head or a projector.

    The facts include the memory that it needs. For a model, they include what it sees pictures with
    and which of the models on this disk can draft for it.
    """
    import edgespec

    if _is_head(reference):
        _show_head(reference, as_json)
        return
    if _is_projector(reference):
        _show_projector(reference, as_json)
        return
    info = edgespec.inspect(reference)
    drafts = edgespec.fitting_drafts(reference)
    entry = entry_of(reference)
    if as_json:
        say_json(_inspection(info, drafts, entry))
        return
    for label, value in [*_facts(info, entry), *_comparison(info)]:
        say(f"{label:<14}{value}")
    cache = {2: "f16", 4: "f32"}.get(info.kv_element_size, "")
    say(f"memory        weights + {cache} KV cache + work space:")
    for n_ctx, total in _memory(info):
        say(f"  context {n_ctx:>7}  {size(total)}")
    say("drafts        " + ("" if drafts else "there is no other model on this disk"))
    for draft in drafts:
        verdict = "fits" if draft.fits else "does not fit"
        say(f"  {draft.reference}: {verdict}, {draft.why}")


def _is_head(reference: str) -> bool:
    from edgespec.loading.models import is_head, model_path

    return is_head(model_path(reference))


def _is_projector(reference: str) -> bool:
    from edgespec.loading.models import is_projector, model_path

    return is_projector(model_path(reference))


def _show_projector(reference: str, as_json: bool) -> None:
    import edgespec

    facts = edgespec.inspect_projector(reference)
    if as_json:
        say_json(facts.to_dict())
        return
    say(f"{'file':<14}{facts.path}")
    say(f"{'kind':<14}projector ({facts.kind}), with which a model sees pictures")
    say(f"{'size':<14}{size(facts.size)}")
    say(f"{'tokens':<14}{facts.tokens}")
    if facts.width:
        say(f"{'target':<14}a model that reads embeddings of {facts.width} numbers")


def _show_head(reference: str, as_json: bool) -> None:
    import edgespec
    from edgespec.loading.models import model_path

    path, facts = model_path(reference), edgespec.inspect_head(reference)
    if as_json:
        say_json({"path": str(path)} | asdict(facts))
        return
    shown = {"file": str(path), "name": facts.source} | facts.in_words()
    shown |= {"size": f"{size(facts.size)}, of which a guess reads {size(facts.read_size)}"}
    shown |= {"context": f"{facts.n_ctx_train} tokens in training"} if facts.n_ctx_train else {}
    for label, value in shown.items():
        if value:
            say(f"{label:<14}{value}")


def _facts(info: edgespec.ModelInfo, entry: Entry | None) -> list[tuple[str, str]]:
    facts = [
        ("file", info.path),
        ("name", info.name),
        ("architecture", info.architecture),
        ("quantisation", info.quantisation),
        ("size", size(info.file_size)),
        ("context", f"{info.n_ctx_train} tokens in training"),
        ("vocabulary", f"{info.vocab_size} tokens"),
        ("layers", str(info.n_layer)),
        ("chat template", "yes" if info.has_chat_template else "no (ChatML is used)"),
    ]
    facts += [(name, value) for name, value in info.engine.items()]
    if info.projector:
        facts.append(("pictures", f"{info.projector.in_words()}, {size(info.projector.size)}"))
    elif info.why_blind:
        facts.append(("pictures", f"none: {info.why_blind}"))
    if entry:
        facts[3:3] = [("parameters", count(entry.parameters)), ("licence", licence(entry))]
    return facts


def _comparison(info: edgespec.ModelInfo) -> list[tuple[str, str]]:
    """Return a labelled sentence that compares the file with the catalogue's file of the same size
    or name, [] if there is none.
    """
    from edgespec import hub

    with status("comparing with the catalogue"):
        told = hub.comparison(Path(info.path))
    return [("catalogue", told)] if told else []


def _memory(info: edgespec.ModelInfo) -> list[tuple[int, int]]:
    """Return context lengths up to the training context, each with the bytes that it needs."""
    longest = info.n_ctx_train or _CONTEXTS[2]
    contexts = sorted({n for n in _CONTEXTS if n < longest} | {longest})
    return [(n, info.memory(n)) for n in contexts]


def _inspection(
    info: edgespec.ModelInfo, drafts: list[edgespec.DraftFit], entry: Entry | None
) -> dict[str, Any]:
    return info.to_dict() | {
        "parameters": entry.parameters if entry else None,
        "licence": entry.licence if entry else None,
        "catalogue": dict(_comparison(info)).get("catalogue"),
        "memory_bytes": {str(n): total for n, total in _memory(info)},
        "drafts": [{"reference": d.reference, "fits": d.fits, "why": d.why} for d in drafts],
    }
