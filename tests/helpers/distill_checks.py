"""Checks edgespec/train/distill_task.py against its definition, and a file that it has written.

The tools' Python runs it, which has torch; its arguments are the folder of edgespec and the path of
a job.
It prints one JSON object: what was found, by name.
"""

import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np

try:
    import torch
except ImportError:  # only the program needs it
    torch = None

TEXT = [1, 40, 50, 60, 33]


def main():
    package = sys.modules["edgespec"] = ModuleType("edgespec")
    package.__path__ = [sys.argv[1]]
    from edgespec.train import distill_task

    job = json.loads(Path(sys.argv[2]).read_text())
    task = distill_task.Task(job)
    numbers = [9, 3]
    loss, _ = task.loss_of(numbers)
    loss.backward()
    gradients = all(bool(each.grad.abs().sum() > 0) for each in task.weights.values())
    with torch.no_grad():
        found = {
            "names": sorted(task.weights), "gradients": gradients,
            "loss": float(loss), "defined": defined(task, numbers),
            "trained": rows_of(job, job["start"], Path(job["folder"]) / "model.safetensors"),
            "written": rows_of(job, job["out"]),
        }  # fmt: skip
    print(json.dumps(found))


def defined(task, numbers):
    """Return the mean divergence, place by place: the likeliest tokens and all others as one."""
    values = []
    for number in numbers:
        own = np.float64(torch.log_softmax(task._logits([number]), -1).numpy())
        for row, true in zip(own, task._rows[number], strict=True):
            p, q = np.exp(np.float64(true["logs"])), np.exp(row[true["ids"]])
            value = sum(a * np.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)
            rest, own_rest = max(1 - p.sum(), 1e-6), max(1 - q.sum(), 1e-6)
            values.append(value + rest * np.log(rest / own_rest))
    return float(np.mean(values))


def rows_of(job, path, weights=None):
    """Return the logits of a model after TEXT; some of its weights replaced."""
    from safetensors.torch import load_file

    from edgespec.convert.worker import load_model

    model = load_model(Path(path))
    if weights:
        assert not model.load_state_dict(load_file(weights), strict=False).unexpected_keys
    return model(torch.tensor([TEXT])).logits[0, -1].tolist()


if __name__ == "__main__":
    main()
