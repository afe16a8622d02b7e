"""Energy measurement, on devices that have counters for it."""

from __future__ import annotations

from pathlib import Path


class Meter:
    """The energy counters of the CPU packages (RAPL through Linux's powercap).

    Often only root can read them.
    """

    def __init__(self, root: Path = Path("/sys/class/powercap")) -> None:
        self._zones = [
            zone for zone in sorted(root.glob("intel-rapl:?")) if _read(zone / "energy_uj")
        ]
        self._last: dict[Path, int] = {}
        self._total = 0.0

    def joules(self) -> float | None:
        """Return the joules used since the first call, None if no counter can be read.

        A counter may wrap around once between two calls.
        """
        if not self._zones:
            return None
        for zone in self._zones:
            now = _read(zone / "energy_uj") or 0
            before = self._last.get(zone, now)
            wrapped = (_read(zone / "max_energy_range_uj") or 0) if now < before else 0
            self._total += (now - before + wrapped) / 1e6
            self._last[zone] = now
        return self._total


def _read(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
