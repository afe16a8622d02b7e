"""Prometheus metrics of one server: counters, the queue, latencies, and sessions of devices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..cache.prefixes import PrefixStore
from ..scheduling.company import Company, Counts
from ..types import Stats
from .preparation import Preparation
from .request_queue import RequestQueue
from .verification.sessions import Sessions

_LONG = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_SHORT = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 5)


class Metrics:
    """The metrics of one server, in a registry of their own. Their names follow vLLM's.

    Speculation and prompt tokens are counted when an answer is complete. Generated tokens are
    counted as they come, so those of cancelled answers are included.
    """

    def __init__(
        self,
        queue: RequestQueue,
        preparation: Preparation,
        sessions: Sessions | None = None,
        company: Company | None = None,
        prefixes: PrefixStore | None = None,
    ) -> None:
        self._registry = registry = CollectorRegistry()

        def counter(name: str, what: str, *labels: str) -> Counter:
            return Counter(f"edgespec:{name}", what, labels, registry=registry)

        def histogram(name: str, what: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"edgespec:{name}", what, registry=registry, buckets=buckets)

        self.requests = counter(
            "http_requests", "Requests by endpoint and status", "endpoint", "status"
        )
        self.prompt_tokens = counter(
            "prompt_tokens", "Prompt tokens, those from the cache included"
        )
        self.cached_tokens = counter("prompt_tokens_cached", "Prompt tokens found in the cache")
        self.generated_tokens = counter("generation_tokens", "Emitted tokens")
        self._drafts = counter("spec_decode_num_drafts", "Steps with a draft")
        self._drafted = counter("spec_decode_num_draft_tokens", "Drafted tokens")
        self._accepted = counter("spec_decode_num_accepted_tokens", "Accepted drafted tokens")
        self._accepted_at = counter(
            "spec_decode_num_accepted_tokens_per_pos",
            "Accepted drafted tokens by position in the draft",
            "position",
        )
        self.queue_time = histogram("request_queue_time_seconds", "Time in the queue", _LONG)
        self.first_token = histogram(
            "time_to_first_token_seconds", "Since the request arrived, the queue included", _LONG
        )
        self.inter_token = histogram(
            "inter_token_latency_seconds", "Between tokens; those of one step come together", _SHORT
        )

        def n_waiting() -> int:
            return queue.n_waiting + preparation.n_waiting + preparation.n_tokenizing

        for name, what, value in (
            ("num_requests_waiting", "Requests in the queues", n_waiting),
            ("num_requests_running", "Requests being answered", lambda: queue.n_running),
        ):
            Gauge(f"edgespec:{name}", what, registry=registry).set_function(value)
        if sessions is not None:
            registry.register(_Devices(sessions))
        if company is not None:
            registry.register(_Evaluations(company.counts))
        if prefixes is not None:
            registry.register(_KeptPrefixes(prefixes))

    def finished(self, stats: Stats) -> None:
        """Count a complete answer."""
        self.prompt_tokens.inc(stats.num_prompt_tokens)
        self.cached_tokens.inc(stats.num_cached_tokens)
        self._drafts.inc(stats.num_draft_steps)
        self._drafted.inc(stats.num_draft_tokens)
        self._accepted.inc(stats.num_accepted_draft_tokens)
        for position, n in enumerate(stats.accepted_per_position):
            self._accepted_at.labels(position).inc(n)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class _Evaluations(Collector):
    """Collects the totals of the target's evaluations."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        """Yield the current values."""
        for name, what in (
            ("evaluations", "Evaluations by the target"),
            ("shared_evaluations", "Evaluations that continued several answers"),
            ("shared_draft_evaluations", "Evaluations with drafts of at least two answers"),
        ):
            yield CounterMetricFamily(f"edgespec:{name}", what, getattr(self._counts, name))


class _KeptPrefixes(Collector):
    """Collects the sizes of prompts that were read and are kept."""

    def __init__(self, prefixes: PrefixStore) -> None:
        self._prefixes = prefixes

    def collect(self) -> Iterator[Metric]:
        """Yield the current values."""
        sizes = self._prefixes.describe()
        for name, what in (
            ("memory_bytes", "Bytes in memory of prompts that were read"),
            ("disk_bytes", "Bytes on disk of prompts that were read"),
            ("tokens", "Tokens of prompts that were read, in memory"),
        ):
            if name in sizes:
                yield GaugeMetricFamily(f"edgespec:prompt_cache_{name}", what, sizes[name])


class _Devices(Collector):
    """Collects the number of devices' sessions, and the totals of the work done for them."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def collect(self) -> Iterator[Metric]:
        """Yield the current values."""
        sessions = self._sessions
        for name, what, value in (
            ("sessions", "Sessions, those without a connection included", len(sessions)),
            ("sessions_connected", "Sessions with a connection", sessions.n_connected),
            ("sessions_waiting", "Sessions that wait for the target", sessions.n_waiting),
            ("parked_cells", "Cells of the cache that rejected nodes take", sessions.n_parked),
        ):
            yield GaugeMetricFamily(f"edgespec:verify_{name}", what, value)
        for name, n in asdict(sessions.counts).items():
            yield CounterMetricFamily(
                f"edgespec:verify_{name}", f"{name.replace('_', ' ').capitalize()}, for devices", n
            )
