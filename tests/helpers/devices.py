"""Devices that talk with the verification service in this process, without a connection."""

import threading

from edgespec import SamplingParams, protocol
from edgespec.server.verification.sessions import Sessions
from edgespec.server.verification.types import Limits
from tests.helpers.serving import TOKENIZER, N, Shared, local, toy

HASH = protocol.vocabulary_hash(TOKENIZER, N)


class Clock:
    """A time that goes on when a test says so."""

    now = 100.0

    def __call__(self):
        return self.now


class FakeDevice:
    """A device whose connection is a pair of calls. got: the frames that it was sent."""

    def __init__(self, sessions, token=protocol.NO_TOKEN, owner=""):
        self.sessions, self.got, self._heard = sessions, [], threading.Condition()
        opening = protocol.Open(protocol.VERSION, token, N, HASH, "")
        self.session = sessions.open(protocol.encode(opening), self.hear, owner)

    def hear(self, data):
        with self._heard:
            self.got.append(protocol.decode(data))
            self._heard.notify_all()

    def say(self, frame):
        return self.sessions.receive(self.session, self.hear, protocol.encode(frame))

    def begin(self, ids, keep=0, checksum=0, n_prompt=None, options=None, **params):
        """Send BEGIN, and return this device."""
        self.context = list(ids) if not keep else self.context[:keep] + list(ids)
        total = keep + len(ids)
        self.say(protocol.Begin(
            1, keep, checksum, n_prompt or total, SamplingParams(**params), 7, tuple(ids),
            options or {},
        ))  # fmt: skip
        return self

    def verify(self, round_, ids=(), ahead=0, parents=()):
        n = len(self.context)
        checksum = protocol.Context(self.context).checksum(n)
        self.say(protocol.Verify(round_, n, checksum, ahead, tuple(ids), tuple(parents)))

    def ask(self, *args, **options):
        """Send VERIFY, and step until nothing is left to do."""
        self.verify(*args, **options)
        settle(self.sessions)

    def all(self, kind):
        return [frame for frame in self.got if isinstance(frame, kind)]

    def wait_for(self, kind):
        """Wait until the thread that answers has sent a frame of this kind."""
        with self._heard:
            assert self._heard.wait_for(lambda: self.all(kind), 20), f"no {kind.__name__} came"

    def text(self):
        """Return the tokens of all answers to empty drafts."""
        return [answer.token for answer in self.all(protocol.Answer)]


def sessions_over(model=None, *, n=4, n_cells=1 << 20, clock=None, prefixes=None, **limits):
    """Return sessions that are not started yet, over `model` or `n` toy models."""
    return Sessions(
        model or Shared([toy() for _ in range(n)], n_cells),
        TOKENIZER,
        name="toy",
        limits=Limits(**limits),
        clock=clock or Clock(),
        prefixes=prefixes,
    )


def settle(sessions):
    """Step until nothing is left to do."""
    for _ in range(500):
        if not sessions.step():
            return
    raise AssertionError("it never rests")


def plain(ids, n):
    """Return the target's first `n` tokens after a prompt, as it gives them in this process."""
    return list(local(drafts=False).generate(ids, max_tokens=n, ignore_eos=True).token_ids)
