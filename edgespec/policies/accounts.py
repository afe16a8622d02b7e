"""The accounts of a policy: the losses that it may still make, and what the last answers won."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

LOSS_BUDGET = 3.5  # tokens that an answer may lose, in proportion to its length
LEAST_LOSS_BUDGET = 1.5  # the same after answers in which drafting lost time
MOST_REFUND = 3.0  # tokens that an answer may lose in addition, if forbidden drafts would have won
EXPLORE = 0.01  # share of emitted tokens that each of the two budgets gains
MOST_SPEED = 32.0  # most tokens emitted in the time of a plain step
_LENGTH = 100.0  # the length of answer, in tokens, that these limits are meant for
_SHORTEST, _LONGEST = 20.0, 125.0  # tokens: shorter and longer answers count as these
_MOST_EXPLORATION = 4.0  # tokens that the exploration budget may hold


@dataclass(slots=True)
class Accounts:
    """The accounts of a policy, in tokens. They are kept between answers, and between processes.

    loss_budget: tokens that may still be lost. Its limits at the beginning of an answer are higher
    for an answer that is expected to be long, and after answers that have won tokens. refunded:
    tokens that this answer got back (see `refund`). exploration_budget: tokens that trying a draft
    model may cost. usual, won: running means of the tokens in an answer and of the tokens that an
    answer won. lengths: tokens of the last two answers. catch_up_penalty: a factor on the cost of a
    draft model's catching up with the text. speed: tokens emitted lately in the time of a plain
    step.
    """

    loss_budget: float = LOSS_BUDGET
    refunded: float = 0.0
    exploration_budget: float = 0.0
    usual: float = _LENGTH
    won: float = 1.0
    lengths: tuple[int, int] = (0, 0)
    catch_up_penalty: float = 1.0
    speed: float = 1.0
    _won_now: float = 0.0
    _caught_up: float = 0.0  # tokens that catching up has cost in this answer
    _won_by_model: float = 0.0
    _scale: float = 1.0

    def begin(self, max_tokens: int | None) -> None:
        """Begin an answer of at most `max_tokens`; bring the loss budget between its limits."""
        length = min(self.usual, max_tokens or _LONGEST)
        self._scale = min(max(length, _SHORTEST), _LONGEST) / _LENGTH
        least, most = self._scale * LEAST_LOSS_BUDGET, self._scale * LOSS_BUDGET
        most = max(most, min(most + self.won, LOSS_BUDGET))
        least = max(least, min(least + self.won, LEAST_LOSS_BUDGET))
        self.loss_budget = min(max(self.loss_budget, least), most)

    def end(self, n_emitted: int) -> None:
        """End an answer of `n_emitted` tokens."""
        self.usual += (n_emitted - self.usual) / 8
        self.won += (self._won_now - self.won) / 4
        self.lengths = self.lengths[1], n_emitted
        self.loss_budget -= self.refunded
        lost, won = self._caught_up, self._won_by_model
        factor = 0.9 if not lost else 0.5 if won > lost else 1.5
        self.catch_up_penalty = min(max(1.0, self.catch_up_penalty * factor), 2.0)
        self.refunded = self._won_now = self._caught_up = self._won_by_model = 0.0

    def count(self, won: float, n_emitted: int) -> None:
        """Count a step. won: its tokens minus those that plain decoding emits in the same time."""
        self._won_now += won
        self.loss_budget += won + EXPLORE * n_emitted
        saved = self.exploration_budget + EXPLORE * n_emitted
        self.exploration_budget = min(saved, _MOST_EXPLORATION)

    def count_catch_up(self, lost: float, won: float) -> None:
        """Count the tokens that a draft model won in a step, and those that catching up cost."""
        self._caught_up += lost
        self._won_by_model += won

    def refund(self, won: float) -> None:
        """Refund, within limits, the tokens that a forbidden draft would have won: the budget was
        too strict for this text.
        """
        missing = self._scale * LEAST_LOSS_BUDGET - self.loss_budget
        refund = max(0.0, min(won, missing, MOST_REFUND - self.refunded))
        self.loss_budget += refund
        self.refunded += refund

    def learned(self) -> dict[str, Any]:
        """Return the accounts of the answers that have ended, as plain data for JSON."""
        return {
            field.name: getattr(self, field.name) for field in fields(self) if field.name[0] != "_"
        }

    def relearn(self, state: Mapping[str, Any]) -> None:
        """Adopt what `learned` returned. Raises ValueError for impossible values."""
        accounts = Accounts(**state)
        before, last = accounts.lengths
        accounts.lengths = int(before), int(last)
        sane = (
            abs(accounts.loss_budget) < 1e6
            and 0 <= accounts.exploration_budget <= _MOST_EXPLORATION
            and 0 < accounts.usual < 1e9
            and abs(accounts.won) < 1e9
            and min(before, last) >= 0
            and 1 <= accounts.catch_up_penalty <= 2
            and 1 <= accounts.speed <= MOST_SPEED
        )
        if not sane:
            raise ValueError(f"no accounts of answers: {state}")
        for field in fields(self):
            setattr(self, field.name, getattr(accounts, field.name))
