"""Draw what more answer tokens gave a head: `python docs/pictures/scaling.py`."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

RESULT = Path(__file__).parents[1] / "results" / "train_smollm2.json"


def main() -> None:
    runs = json.loads(RESULT.read_text())["runs"]
    matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "edgespec"}
    matplotlib.rcParams |= {"font.family": "sans-serif", "font.size": 12}
    figure, (scaling, learning) = plt.subplots(
        1, 2, sharey=True, figsize=(10, 4), layout="constrained"
    )
    tokens = [run["tokens"] for run in runs]
    lengths = [run["held out, simulated"]["acceptance_length"] for run in runs]
    scaling.plot(tokens, [each[-1] for each in lengths], "o-", label="measured")
    scaling.plot(tokens, [run["plan"]["expected"] for run in runs], "x--", label="planned before")
    scaling.set(xscale="log", xlabel="answer tokens", ylabel="mean acceptance length")
    scaling.set_xticks(tokens, [f"{n:,}" for n in tokens])
    scaling.minorticks_off()
    scaling.legend()
    for run, each in zip(runs, lengths, strict=True):
        learning.plot(range(1, len(each) + 1), each, ".-", label=f"{run['tokens']:,} tokens")
    learning.set(xlabel="passes over the answers")
    learning.legend()
    path = Path(__file__).with_suffix(".svg")
    figure.savefig(path, metadata={"Date": None})
    path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")


if __name__ == "__main__":
    main()
