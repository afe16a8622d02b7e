"""The drafter that uses a loaded model: a draft model, or a trained head."""

from __future__ import annotations

from typing import Any

from ..backends.base import Head
from ..errors import ConfigError
from . import register
from .base import Drafter, DrafterContext
from .draft_model import ModelDrafter
from .heads import HeadDrafter
from .window import SINKS, Window

_CHOICES = 4  # choices of a model after one text, unless `top_k` is given
_MOST_CHOICES = 8  # most choices that a model may draft after one text


@register("draft_model", "draft model", uses_model=True, automatic=True)
def make(context: DrafterContext, *, top_k: int | None = None) -> Drafter:
    """Make the drafter of method "draft_model".

    top_k: the number of the model's choices after one text; with more than one it drafts trees if
    the target evaluates them. With a target on another machine it drafts by coupled sampling, since
    only token ids are sent, and it drafts ahead while a draft is being verified.
    """
    model = context.draft_model
    if model is None:
        raise ConfigError(
            "the method that was chosen needs a draft model, and none that the catalogue suggests "
            "is on this disk; name one: -md on the command line, draft=… in Python"
        )
    if top_k is None:
        top_k = 1 if context.config.fixed else _CHOICES
    if not (isinstance(top_k, int) and 1 <= top_k <= _MOST_CHOICES):
        raise ConfigError(f"top_k must be 1 to {_MOST_CHOICES}, got {top_k!r}")
    _, p_min = context.config.fixed or (0, 0.0)
    is_head = isinstance(model, Head)
    options: dict[str, Any] = {
        "top_k": top_k if context.max_leaves > 1 else 1,
        "p_min": p_min,
        "acceptance": "coupled" if context.is_remote else context.config.acceptance,
        "window": Window(
            context.config.draft_window, model.n_ctx, context.draft_s, 0 if is_head else SINKS
        ),
        "needs_probs": not context.config.fixed,
    }
    if not isinstance(model, Head):
        return ModelDrafter(model, context.vocab_size, prefixes=context.prefixes, **options)
    if context.is_remote:
        raise ConfigError(
            f"a head ({model.kind}) reads the target's hidden states, which do not travel: "
            "draft with a model or by lookup for a target on another machine"
        )
    return HeadDrafter(model, context.vocab_size, context.states, **options)
