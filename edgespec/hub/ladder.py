"""The ladder: which models of the catalogue to take on this device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from ..costs.places import Place as Place
from ..costs.places import places as places
from . import catalogue, references
from .catalogue import Entry, HubSource, ModelFile, Use

N_CTX = 8192  # tokens of context that a model is loaded with unless the user says otherwise
UNASKED = 500_000_000  # bytes that are fetched without a question: a minute or two on a usual line

_LEAST_SPEED = 6.0  # tokens a second: about as fast as people read
_SHARE = 0.9  # of the memory that is free: other programs go on
_CPU_SHARE = 5  # on a processor a draft model pays if it has at most a fifth of the target's bytes


@dataclass(frozen=True, slots=True)
class Pick:
    """A model that fits this device. memory: bytes that it needs there; speed: tokens a second that
    are expected of plain decoding; draft: the reference of its draft model, "" for none;
    draft_memory: bytes that it needs as well.
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
        """The name under which it is asked for."""
        return _reference(self.entry, self.file)

    @property
    def repo(self) -> str:
        """The repository of the hub that its file comes from, "" for none."""
        return next((s.repo for s in self.file.sources if isinstance(s, HubSource)), "")

    @property
    def speed(self) -> float:
        """Tokens a second: each reads all weights once."""
        return self.place.read_speed / self.size

    @property
    def is_fast_enough(self) -> bool:
        """True if answers come about as fast as people read."""
        return self.speed >= _LEAST_SPEED

    @property
    def about(self) -> str:
        """The size, memory and speed on this device, in words."""
        basis = "from what was measured here" if self.place.is_measured else "typical, not measured"
        return (
            f"{_gb(self.size)} to fetch, {_gb(self.memory)} of memory, about "
            f"{self.speed:.0f} tokens/s ({basis}){self._companions}"
        )

    @property
    def _companions(self) -> str:
        """The draft model, as the rest of a sentence."""
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
    """Return the recommended models that fit a device and are fast enough there, the best first."""
    recommended = [e for e in catalogue.load().values() if e.recommended and e.use == use]
    possible = (pick(entry, _smallest(entry), places) for entry in recommended)
    return sorted(
        (each for each in possible if each and each.is_fast_enough),
        key=lambda each: each.entry.parameters,
        reverse=True,
    )


def to_take(places: Sequence[Place]) -> list[Pick]:
    """Return at most three models to take on a device: the best to chat with, a light one, and one
    for code.
    """
    chat = picks(places)
    light = [each for each in chat[1:] if each.size <= UNASKED]
    return [*chat[:1], *(light or chat[1:])[:1], *picks(places, "code")[:1]]


def advice(places: Sequence[Place]) -> list[tuple[str, str, str]]:
    """Return the references of the models to take on a device, what each is good at, and what it
    takes there.
    """
    rows = [(each.reference, each.entry.description, each.about) for each in to_take(places)]
    fallback = catalogue.entry(catalogue.fallback_model)
    return rows or [(fallback.name, fallback.description, "nothing better fits this device")]


def usable_on_disk(places: Sequence[Place], uses: Iterable[Use] = ("chat",)) -> list[Pick]:
    """Return the models on this disk that are for such a use and fit its memory, the best first."""
    on_disk = [
        pick(entry, file, places)
        for entry in catalogue.load().values()
        if entry.use in uses
        for file in _files_on_disk(entry)
    ]
    there = [each for each in on_disk if each]
    return sorted(there, key=lambda each: (each.entry.parameters, each.size), reverse=True)


def pick(entry: Entry, file: ModelFile, places: Iterable[Place]) -> Pick | None:
    """Return a model at the fastest place in whose memory it fits, None where it fits nowhere."""
    for place in sorted(places, key=lambda each: each.read_speed, reverse=True):
        room = _SHARE * place.memory
        needed = entry.memory(file, N_CTX)
        if needed is not None and file.size and needed <= room:
            draft, beside = _draft(entry, file.size, place, room - needed)
            return Pick(entry, file, file.size, needed, place, draft, beside)
    return None


def _draft(entry: Entry, size: int, place: Place, room: float) -> tuple[str, int]:
    """Return the reference and the bytes of memory of the best draft model that pays beside so many
    bytes of weights and fits into what is left; "" and 0 for none.
    """
    most = size if place.is_gpu else size / _CPU_SHARE
    for name in entry.drafts:
        draft = catalogue.load()[name]
        file = _smallest(draft)
        needed = draft.memory(file, N_CTX)
        if not file.size or not needed or file.size > most:
            continue
        more = needed - catalogue.WORK_SPACE  # they do not run at the same time
        if more <= room:
            return _reference(draft, file), more
    return "", 0


def _smallest(entry: Entry) -> ModelFile:
    """Return the smallest GGUF whose size is known: it is fetched in the shortest time."""
    known = [file for file in entry.files if file.size and not file.has_folder]
    return min(known or entry.files, key=lambda file: file.size or 0)


def _files_on_disk(entry: Entry) -> Iterator[ModelFile]:
    for file in entry.files:
        path = None if file.has_folder else references.on_disk(file)
        if path is not None:
            yield replace(file, size=file.size or path.stat().st_size)
