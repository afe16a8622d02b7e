"""Making an engine from drafters, policy and verifier, for local, remote and replayed targets."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from .. import drafters, policies
from ..backends.base import BatchedModel, FileHead, FileModel, Head, Model, Tokenizer
from ..backends.features import Features
from ..cache.prefixes import Prefixes, PrefixStore
from ..config import SpeculativeConfig, build
from ..costs.governed import GovernedModel, GovernedSlots
from ..costs.measuring import READING, measure, plans_anew
from ..costs.online import Costs
from ..costs.profiles import Profile
from ..costs.threads import ThreadGovernor, governor_of
from ..decoding.kept import Kept
from ..decoding.owners import OwnRates, RatesStore
from ..decoding.session import Session
from ..device import LoadMeter
from ..drafters.base import Drafter, DrafterContext, Shared
from ..engine import Engine
from ..errors import ConfigError
from ..policies.base import Policy, PolicyContext
from ..sampling import rules
from ..scheduling.company import Company, Member
from ..scheduling.together import Together
from ..types import Requires
from ..verifiers.base import Verifier
from ..verifiers.local import LocalVerifier
from .prefixes import identity_of


@dataclass(frozen=True, slots=True)
class Speculation:
    """The drafters and the policy of an engine.

    summary: a description of what they draft from. rates: the acceptance rates and other things
    that they have learned, kept apart for each owner of requests.
    """

    drafters: Sequence[Drafter]
    policy: Policy
    summary: str
    rates: OwnRates

    def session(self, verifier: Verifier, **options: Any) -> Session:
        """Return the generation loop of these parts with a verifier; `options` as in Session."""
        return Session(
            verifier,
            self.drafters,
            self.policy,
            rates=self.rates,
            **options,
        )


def speculate(
    context: DrafterContext, costs: Callable[[], Costs], store: RatesStore | None = None
) -> Speculation:
    """Make the drafters and the policy that a configuration asks for.

    costs: returns the costs of evaluations; it is called only if the policy decides by them. store:
    what several sessions have learned.
    Raises ConfigError for unknown drafters and options, and for a drafter without the model that it
    needs.
    """
    config, entries = context.config, _entries(context)
    # leaves matter only if a drafter makes trees or a model guesses several tokens after one text
    trees = any(entry.trees for entry in entries) or config.options.get("top_k", 1) != 1
    asked = PolicyContext(config, costs, context.max_leaves if trees or not config.fixed else 1)
    drafters.check_options(config.options, entries, policies.entry(asked).options)
    policy = policies.make(asked)
    if policy.costs:
        policy.costs.fills = _may_fill(context.target)
        context = replace(context, draft_s=policy.costs.draft_s)
    depth, _ = config.fixed or (1, None)
    made = drafters.make(entries, context) if depth else []
    said = [entry.summary for entry in entries if entry.name != "forced"]  # few requests use it
    summary = ", ".join(said) if made else ""
    rates = OwnRates([*made, policy], policy.shared(), store)
    return Speculation(made, policy, summary or "off: not asked for", rates)


def _may_fill(target: Model | None) -> bool:
    """Return whether more rows than a draft needs may be evaluated: only with a target that can
    drop them again, and whose rows may depend on how many are evaluated together.
    """
    if target is None or not target.capabilities.truncate:
        return False
    return not _is_invariant(target)


def _entries(context: DrafterContext) -> list[drafters.Entry]:
    """Return the drafters that are asked for and can draft here.

    "memory" is left out if there is nothing to remember. Drafters that need a draft model are left
    out if none is loaded and other drafters are asked for, too. The method "auto" leaves out
    drafters of trees if the target evaluates only chains.
    """
    entries = drafters.chosen(context.config.method)
    entries = [e for e in entries if e.name != "memory" or context.config.has_memory]
    if context.config.method == "auto" and context.max_leaves == 1:
        entries = [entry for entry in entries if not entry.trees]
    without = [entry for entry in entries if not entry.uses_model]
    return entries if context.draft_model or not without else without


def uses_model(config: SpeculativeConfig) -> bool:
    """Return whether a configuration uses a draft model."""
    depth, _ = config.fixed or (1, None)
    return depth > 0 and any(entry.uses_model for entry in drafters.chosen(config.method))


def _uses_memory(method: str) -> bool:
    return any(entry.name == "memory" for entry in drafters.chosen(method))


def configured(
    given: SpeculativeConfig | Mapping[str, Any] | None,
    draft: str | os.PathLike[str] | None = None,
) -> SpeculativeConfig:
    """Return the speculative configuration; its `model` is `draft` if that names a draft model.

    Raises ConfigError for unknown names, and for a configured draft model that nothing would use.
    """
    config = (
        given
        if isinstance(given, SpeculativeConfig)
        else build(SpeculativeConfig, {} if given is None else given)
    )
    if draft is not None and not isinstance(draft, (str, os.PathLike)):
        raise ConfigError(f"a draft model is a name or a file, got {draft!r:.80}")
    rules.known.entry(config.acceptance)
    used = any(entry.uses_model for entry in drafters.chosen(config.method))
    if config.model and not used:
        raise ConfigError(
            f"method {config.method!r} uses no draft model, but {config.model!r} was given"
        )
    if (config.draft_corpus or config.draft_memory == "disk") and not _uses_memory(config.method):
        raise ConfigError(
            f"method {config.method!r} drafts from no documents and no earlier answers, which "
            "draft_corpus and draft_memory are for; name the method memory as well, or auto"
        )
    if draft is None or draft == "auto" or not used:
        return config
    draft = os.fspath(draft)
    if config.model and config.model != draft:
        raise ConfigError(f"two draft models were named: {config.model!r} and {draft!r}; name one")
    return replace(config, model=draft)


def assemble(
    target: Model,
    tokenizer: Tokenizer,
    draft_model: Model | None = None,
    speculative_config: SpeculativeConfig | Mapping[str, Any] | None = None,
    *,
    profile: Profile | Costs | None = None,
    kept: Kept | None = None,
    loading: LoadMeter | None = None,
    slots: BatchedModel | None = None,
    prefixes: PrefixStore | None = None,
    **options: Any,
) -> Engine:
    """Make an engine from loaded models, of the toy backend or of a backend of your own.

    draft_model: it is closed with the engine, or at once if the method uses no draft model.
    profile: the costs of evaluations; None measures them now, if the policy decides by them. The
    values of a Costs may become known later; until then the engine decodes plainly.
    kept: gives what was learned in earlier processes and stores it for later ones; None for
    neither. loading: a LoadMeter that was made before the models were loaded. slots: the target
    with a slot for each request that is answered at once, `target` being the first; None for one
    request at a time. prefixes: keeps what the models have read; None for no such store.
    options: `on_busy`, `description`, `works` and `sampling` of Engine. Requests are greedy unless
    they or `sampling` say otherwise.
    """
    for model in (target, draft_model):
        if not isinstance(model, Model | None):
            raise ConfigError(
                f"{type(model).__name__} is no edgespec.Model; make it a subclass, whose optional "
                "methods do nothing"
            )
    config = configured(speculative_config)
    if draft_model and not uses_model(config):
        draft_model.close()
        draft_model = None
    targets = slots.models if slots else [target]
    drafts = draft_slots(draft_model, targets)
    governor = governor_of(target, [*targets, *drafts], loading)
    costs = functools.cache(lambda: _costs(profile, target, draft_model))
    of_target, of_draft = (
        prefixes.of(identity_of(model))
        if prefixes and model and not isinstance(model, Head)
        else None
        for model in (target, draft_model)
    )
    company = _company(slots, governor, of_target)
    made, sessions, store, shared = [], [], RatesStore(), Shared()
    for i, (model, drafting) in enumerate(zip(targets, drafts, strict=True)):
        states, requires = Features(), Requires()
        if isinstance(drafting, Head):  # switching hidden states on takes time: do it at load
            requires = Requires(drafting.layers, drafting.n_states)
        context = DrafterContext(
            config if drafting or not draft_model else _without_model(config),
            model.vocab_size,
            model,
            tokenizer,
            drafting,
            model.capabilities.max_leaves,
            states,
            prefixes=of_draft,
            shared=shared,
        )
        parts = speculate(context, costs, store)
        verifier = local_verifier(
            model,
            governor,
            rule=config.acceptance,
            drafts=bool(parts.drafters),
            states=states,
            requires=requires,
            member=Member(company) if company else None,
            slot=i,
            in_pieces=len(targets) > 1 and _is_invariant(target),
            prefixes=of_target,
        )
        made.append(parts)
        sessions.append(parts.session(verifier))
    if company and made[0].policy.costs:
        company.controller = Together(made[0].policy.costs)
    return _engine(
        made, sessions, context, governor, kept=kept, company=company, prefixes=prefixes, **options
    )


def _without_model(config: SpeculativeConfig) -> SpeculativeConfig:
    """Return a configuration for a slot that has no draft model: the same without the drafters that
    use one, and without their options.
    """
    entries = drafters.chosen(config.method)
    others = [entry for entry in entries if not entry.uses_model]
    taken = {name for entry in others for name in entry.options}
    dropped = {name for entry in entries for name in entry.options} - taken
    method = ",".join(entry.name for entry in others) or "none"
    return replace(
        config,
        method=config.method if config.method == "auto" else method,
        options={name: v for name, v in config.options.items() if name not in dropped},
    )


def _is_invariant(target: Model) -> bool:
    """Return whether rows of a target must not depend on what is evaluated together with them."""
    return isinstance(target, FileModel) and target.config.batch_invariant


def _company(
    slots: BatchedModel | None, governor: ThreadGovernor | None, kept: Prefixes | None
) -> Company | None:
    if slots is None:
        return None
    governed = GovernedSlots(slots, governor) if governor else slots
    return Company(governed, Together(None), kept=kept)


def draft_slots(draft: Model | None, targets: Sequence[Model]) -> list[Model | None]:
    """Return a draft model or head for each slot's target, all over the same weights; None for the
    further slots of one that drafts for one slot only.
    """
    others = targets[1:]
    if isinstance(draft, FileHead):
        heads: list[Model | None] = [draft]
        try:
            for target in others:
                heads.append(draft.for_slot(cast(FileModel, target)))
        except BaseException:
            for head in filter(None, heads[1:]):
                head.close()
            raise
        return heads
    if others and isinstance(draft, FileModel):
        batched = draft.batched()
        batched.add(len(others), draft.n_ctx)
        return list(batched.models)
    return [draft, *[None] * len(others)]


def assemble_with(
    verifier: Callable[[bool], Verifier],
    context: DrafterContext,
    costs: Callable[[], Costs],
    governor: ThreadGovernor | None,
    *,
    kept: Kept | None = None,
    **options: Any,
) -> Engine:
    """Make an engine with a verifier whose target may be anywhere. The engine closes all models.

    verifier: returns the verifier; its argument is True if there may be drafts. context: must have
    a tokenizer. costs: as for `speculate`. governor: chooses the number of threads of the models in
    this process. kept, options: as for `assemble`.
    """
    made = speculate(context, costs)
    session = made.session(verifier(bool(made.drafters)))
    return _engine([made], [session], context, governor, kept=kept, **options)


def _engine(
    made: Sequence[Speculation],
    sessions: Sequence[Session],
    context: DrafterContext,
    governor: ThreadGovernor | None,
    *,
    kept: Kept | None,
    **options: Any,
) -> Engine:
    """Make an engine of sessions and the parts that they were made of."""
    assert context.tokenizer is not None
    for parts in made:
        if parts.policy.costs:
            parts.policy.costs.follow(governor)
    if kept:
        kept.recall(*(parts.rates for parts in made))
    drafts = bool(made[0].drafters)
    elsewhere = ", verified on another machine" if drafts and context.is_remote else ""
    return Engine(
        sessions,
        context.tokenizer,
        speculation=made[0].summary + elsewhere,
        target=context.target,
        kept=kept,
        **options,
    )


def local_verifier(target: Model, governor: ThreadGovernor | None, **options: Any) -> LocalVerifier:
    """Return a verifier for a target in this process; `governor`, if any, chooses its threads.

    options: further arguments of LocalVerifier.
    """
    if governor is None:
        return LocalVerifier(target, **options)
    model = GovernedModel(target, governor)
    return LocalVerifier(model, clock=model.clock, **options)


def _costs(given: Profile | Costs | None, target: Model, draft: Model | None) -> Costs:
    """Return the given costs, or measure them now. Costs of models without files are not saved."""
    if given is not None:
        return given if isinstance(given, Costs) else Costs(given)
    curve = measure(target, budget_s=1)
    drafting = measure(draft, widths=READING, budget_s=1) if draft else None
    return Costs(Profile(curve, drafting, replans=plans_anew(target)))
