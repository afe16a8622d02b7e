"""Random answers under all schemas of JSON-Schema-Test-Suite, and under a hundred of ours.

    python -m benchmarks.schemas [--answers 3]

Says how many schemas can be followed, how many answers came to their end, and how many of those
are valid, which has to be all.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jsonschema_rs

from benchmarks.common import save
from tests.helpers import schemas


def counted(found: Iterator[tuple[str, Any]], n: int) -> dict[str, Any]:
    """Return the counts, and why schemas were refused."""
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for name, schema in found:
        counts["schemas"] += 1
        answered = schemas.answers(schema, n)
        if answered.refused:
            reasons[answered.refused.removeprefix("schema cannot be followed: ")[:60]] += 1
            continue
        counts["followed"] += 1
        counts["cut"] += answered.n_cut
        for text in answered.texts:
            counts["ended"] += 1
            valid = jsonschema_rs.is_valid(schema, schemas.value_of(text))
            counts["valid"] += valid
            if not valid:
                print("INVALID", name, text)
    return dict(counts) | {"refused": dict(reasons.most_common(20))}


def main() -> None:
    """Count, and save the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--answers", type=int, default=3)
    given = parser.parse_args()
    suite, own = counted(schemas.suite(), given.answers), counted(schemas.own(), given.answers)
    save("schemas", {"answers": given.answers, "suite": suite, "own": own})


if __name__ == "__main__":
    main()
