"""The drafter that has a model loaded for it: a draft model, or a trained head."""

from __future__ import annotations

import functools
from typing import Any

from ..backends.base import Trained
from ..errors import ConfigError
from . import register
from .ahead import AheadDrafter
from .base import Drafter, DrafterContext
from .draft_model import ModelDrafter
from .heads import HeadDrafter
from .model_tree import ModelTreeDrafter, TreeOptions
from .trees import max_leaves

_CHOICES = 4  # of a model behind one text, if not asked for another number
_MOST_CHOICES = 8  # that a model may draft behind one text


@register("draft_model", "draft model", uses_model=True, automatic=True)
def make(context: DrafterContext, *, top_k: int | None = None) -> Drafter:
    """Make the drafter of method "draft_model".

    top_k: choices of the model behind one text; with more than one it drafts trees where the
    target evaluates them. With a target on another machine it drafts by coupled sampling, since
    only ids travel, and uses the time in which a draft is under way.
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
    options: dict[str, Any] = {
        "p_min": p_min,
        "acceptance": "coupled" if context.is_remote else context.config.acceptance,
        "costs": context.costs,
        "window": context.config.draft_window,
    }
    leaves = max_leaves(context)
    if isinstance(model, Trained):
        if context.is_remote:
            raise ConfigError(
                f"a head ({model.kind}) reads the target's hidden states, which do not travel: "
                "draft with a model or by lookup for a target on another machine"
            )
        shape = TreeOptions(top_k if leaves > 1 else 1, leaves)
        return HeadDrafter(model, context.vocab_size, shape, **options)
    shape = TreeOptions(top_k, leaves)
    make = functools.partial(ModelTreeDrafter, tree=shape) if min(shape) > 1 else ModelDrafter
    drafter = make(model, context.vocab_size, **options)
    return AheadDrafter(drafter) if context.is_remote else drafter
