"""What a test run shows: a line for each folder that is done, failures at once, then totals."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import pytest

LIST = "python -m tests.helpers.selection"
KINDS = {
    "android": "the app's Java core with a real server",
    "cli": "the command line, in terminals and pipes",
    "contract": "every model, drafter, verifier and policy keeps its contract",
    "lossless": "exact enumeration: the text follows the target's own law",
    "devices": "GPUs, where llama.cpp can use one",
    "models": "real weights",
    "server": "the APIs and the verification of devices",
    "unit": "settings, the device, files that are kept",
}


class Progress:
    """A plugin for whoever looks at a test run, in one process or several."""

    def __init__(self, config: pytest.Config, selection: Any) -> None:
        self._config = config
        self._selection = selection
        self._left: Counter[str] = Counter()
        self._waiting: Counter[str] = Counter()  # cases by folder
        self._outcomes: dict[str, Counter[str]] = defaultdict(Counter)
        self._seconds: Counter[str] = Counter()
        self._skipped: Counter[str] = Counter()  # by reason
        self._n_cases = self._n_done = 0

    @property
    def _terminal(self) -> Any:
        return self._config.pluginmanager.get_plugin("terminalreporter")

    # --- what is to be run: here, or, with several processes, in each of them ---

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note the cases, unless other processes run them."""
        if session.items:
            self._begin([item.nodeid for item in session.items], 1)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        """Note the cases, which are the same in all processes."""
        if not self._n_cases:
            self._begin(ids, len(self._config.getoption("tx")))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: Any) -> None:
        """Note what a process has left out."""
        self._left = self._left or Counter(getattr(node, "workeroutput", {}).get("left", {}))

    def _begin(self, ids: list[str], n_processes: int) -> None:
        self._n_cases = len(ids)
        self._waiting.update(map(_folder, ids))
        where = "" if n_processes == 1 else f" in {n_processes} processes"
        self._write(f"{self._n_cases} cases{where}\n")

    # --- what was run ---

    def pytest_report_teststatus(self, report: Any) -> tuple[str, str, str] | None:
        """Show no dots."""
        if hasattr(report, "wasxfail") or (report.passed and report.when != "call"):
            return None
        is_error = report.failed and report.when != "call"
        category = "error" if is_error else report.outcome
        return category, "", category.upper()

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Count a case, and write a line when its folder is done."""
        folder = _folder(report.nodeid)
        self._seconds[folder] += report.duration
        if report.when == "call" or report.outcome != "passed":
            self._outcomes[folder][report.outcome] += 1
        if report.skipped and isinstance(report.longrepr, tuple):
            self._skipped[str(report.longrepr[2]).removeprefix("Skipped: ")] += 1
        if report.failed:
            self._write(f"FAILED {report.nodeid}\n")
        if report.when != "teardown":
            return
        self._n_done += 1
        self._waiting[folder] -= 1
        if not self._waiting[folder]:
            self._write(self._line(folder))
        elif self._terminal.isatty:
            share = 100 * self._n_done // self._n_cases
            line = self._cut(f"{share:3} %  {report.nodeid.partition('::')[0]}")
            self._terminal.rewrite(line, erase=True)

    def _line(self, folder: str) -> str:
        counts = self._outcomes[folder]
        said = ", ".join(f"{n} {outcome}" for outcome, n in sorted(counts.items()))
        kind = KINDS.get(folder, f"edgespec/{folder.removeprefix('unit/')} alone")
        share = 100 * self._n_done // self._n_cases
        seconds = f"{self._seconds[folder]:.0f} s"
        return self._cut(f"{share:3} %  {folder:16} {seconds:>5}  {said} ({kind})") + "\n"

    def _cut(self, line: str) -> str:
        """Return what a terminal shows of a line without wrapping it."""
        if not self._terminal.isatty:
            return line
        width = self._terminal._tw.fullwidth - 1
        return line if len(line) <= width else line[: width - 1] + "…"

    def pytest_terminal_summary(self) -> None:
        """Say what did not run, and why."""
        if not self._n_cases:
            self._write(f"no test ran of {' '.join(self._config.args)}; -n0 may say more\n")
        for why, n in self._skipped.most_common():
            self._write(f"{n:6} skipped: {why}\n")
        if n := sum((self._left or self._selection.left).values()):
            self._write(f"{n:6} left to `pytest --all`: `{LIST}` says why\n")

    def _write(self, text: str) -> None:
        if self._terminal.isatty:
            self._terminal.rewrite("", erase=True)
            self._terminal.rewrite("")  # back to the first column
        self._terminal.write(text, flush=True)


def _folder(nodeid: str) -> str:
    parts = nodeid.partition("::")[0].split("/")[1:-1]
    return "/".join(parts[:2]) if parts[:1] == ["unit"] else "".join(parts[:1])
