"""The ladder: a ranking of the catalogue's models for this device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from ..backends import context_length
from ..costs.places import Place as Place
from ..costs.places import places as places
from . import catalogue, references
from .catalogue import Entry, HubSource, ModelFile, Use

N_CTX = context_length.LEAST  # tokens of context that a model needs memory for
UNASKED = 500_000_000  # bytes that are fetched without asking: a minute or two on a usual line

_LEAST_SPEED = 6.0  # tokens a second: about as fast as people read
_SHARE = 0.9  # share of the free memory that a model may use: other programs need some too
CPU_SHARE = 5  # on a processor a draft model may have at most a fifth of the target's bytes


@dataclass(frozen=True, slots=True)
class Pick:
    """A model that fits this device.

    size: the bytes of its file. memory: the bytes that it needs while it runs. draft: the reference
    of its draft model, "" for none. draft_memory: the bytes that the draft model needs in addition.
    """

    entry: Entry
    file: ModelFile
    size: int
    memory: int
    place: Place
    draft: str
    draft_memory: int = 0

    @property
    def reference(self) -> str:
        """The reference of the model, as a user would give it."""
        return _reference(self.entry, self.file)

    @property
    def repo(self) -> str:
        """The hub repository that its file comes from, "" for none."""
        return next((s.repo for s in self.file.sources if isinstance(s, HubSource)), "")

    @property
    def speed(self) -> float:
        """The expected tokens a second of plain decoding: each token reads all weights once."""
        return self.place.read_speed / self.size

    @property
    def is_fast_enough(self) -> bool:
        """True if answers come about as fast as people read."""
        return self.speed >= _LEAST_SPEED

    @property
    def about(self) -> str:
        """A phrase with the size, memory and speed on this device."""
        basis = "from what was measured here" if self.place.is_measured else "typical, not measured"
        return (
            f"{_gb(self.size)} to fetch, {_gb(self.memory)} of memory, about "
            f"{self.speed:.0f} tokens/s ({basis}){self._companions}"
        )

    @property
    def _companions(self) -> str:
        """The end of `about`, which names the draft model; "" for none."""
        if not self.draft:
            return ""
        memory = f"{_gb(self.draft_memory)} of memory more"
        return f"; what drafts for it: the draft model {self.draft} ({memory})"


def _gb(n: int) -> str:
    return f"{n / 1e9:.1f} GB"


def _reference(entry: Entry, file: ModelFile) -> str:
    first = file.quantisation == entry.files[0].quantisation
    return entry.name if first else f"{entry.name}:{file.quantisation}"


def picks(places: Sequence[Place], use: Use = "chat") -> list[Pick]:
    """Return the recommended models that fit a device and are fast enough on it, the best first."""
    recommended = [e for e in catalogue.load().values() if e.recommended and e.use == use]
    possible = (pick(entry, _smallest(entry), places) for entry in recommended)
    return sorted(
        (each for each in possible if each and each.is_fast_enough),
        key=lambda each: each.entry.parameters,
        reverse=True,
    )


def to_take(places: Sequence[Place]) -> list[Pick]:
    """Return up to three models to use on a device: the best one for chat, a small one, and one for
    code.
    """
    chat = picks(places)
    light = [each for each in chat[1:] if each.size <= UNASKED]
    return [*chat[:1], *(light or chat[1:])[:1], *picks(places, "code")[:1]]


def advice(places: Sequence[Place]) -> list[tuple[str, str, str]]:
    """Return (reference, description, needs) of each model to use on a device. The description says
    what the model is good at; `needs` gives its size, memory and speed there.
    """
    rows = [(each.reference, each.entry.description, each.about) for each in to_take(places)]
    fallback = catalogue.entry(catalogue.fallback_model)
    return rows or [(fallback.name, fallback.description, "nothing better fits this device")]


def usable_on_disk(places: Sequence[Place], uses: Iterable[Use] = ("chat",)) -> list[Pick]:
    """Return the models on this disk that are for one of these uses and fit the memory, the best
    first.
    """
    on_disk = [
        pick(entry, file, places)
        for entry in catalogue.load().values()
        if entry.use in uses
        for file in _files_on_disk(entry)
    ]
    there = [each for each in on_disk if each]
    return sorted(there, key=lambda each: (each.entry.parameters, each.size), reverse=True)


def pick(entry: Entry, file: ModelFile, places: Iterable[Place]) -> Pick | None:
    """Return a model on the fastest place whose memory it fits into, None if it fits nowhere."""
    for place in sorted(places, key=lambda each: each.read_speed, reverse=True):
        room = _SHARE * place.memory
        needed = entry.memory(file, N_CTX)
        if needed is not None and file.size and needed <= room:
            draft, beside = _draft(entry, file.size, place, room - needed)
            return Pick(entry, file, file.size, needed, place, draft, beside)
    return None


def _draft(entry: Entry, size: int, place: Place, room: float) -> tuple[str, int]:
    """Return the reference and the memory in bytes of the best draft model, "" and 0 if none is
    suitable.

    size: the bytes of the target, which limit the draft model's. room: the bytes of memory left.
    """
    most = size if place.is_gpu else size / CPU_SHARE
    for name in entry.drafts:
        draft = catalogue.load()[name]
        file = _smallest(draft)
        needed = draft.memory(file, N_CTX)
        if not file.size or not needed or file.size > most:
            continue
        more = needed - catalogue.WORK_SPACE  # which the two models share
        if more <= room:
            return _reference(draft, file), more
    return "", 0


def _smallest(entry: Entry) -> ModelFile:
    """Return the smallest GGUF of known size, since it is fetched in the shortest time."""
    known = [file for file in entry.files if file.size and not file.has_folder]
    return min(known or entry.files, key=lambda file: file.size or 0)


def _files_on_disk(entry: Entry) -> Iterator[ModelFile]:
    for file in entry.files:
        path = None if file.has_folder else references.on_disk(file)
        if path is not None:
            yield replace(file, size=file.size or path.stat().st_size)
