"""What a newcomer is told: ten ordinary questions under five seeds, with the model's own sampling.

    python -m benchmarks.first_answers NAME [--save NAME]

NAME: a GGUF in $EDGESPEC_TEST_MODELS. Each question begins a new conversation but for the one that
follows the summary. Answers end as in `edgespec chat`, the end of repetition included. Reported are
all answers and how they ended; whether they are right is for people to read.
"""

from __future__ import annotations

import argparse
from collections import Counter

import edgespec
from benchmarks.common import model, save

QUESTIONS = [
    "What is the capital of France?",
    "Tell me a joke.",
    "What is 17 plus 25?",
    "Wie heißt die Hauptstadt von Italien?",
    "Answer with one emoji: how do you feel today?",
    "Summarise in one sentence: The Wright brothers, Orville and Wilbur, built the first "
    "successful aeroplane. They flew it on 17 December 1903 near Kitty Hawk, North Carolina. The "
    "first flight lasted 12 seconds and covered 36 metres.",
    "And who of them was the older one?",
    "List five fruits.",
    "Write a haiku about rain.",
    "How long do I boil an egg so that it is hard?",
]
FOLLOWS = 6
SEEDS = range(5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name")
    parser.add_argument("--save", metavar="NAME")
    asked = parser.parse_args()
    endless = edgespec.RepetitionDetection.endless()
    answers: list[dict] = []
    with edgespec.load(model(asked.name), n_ctx=4096, sampling=None) as engine:
        for seed in SEEDS:
            chat = engine.chat()
            for i, question in enumerate(QUESTIONS):
                if i != FOLLOWS:
                    chat.reset()
                done = chat.send(question, seed=seed, repetition_detection=endless)
                answers.append({"seed": seed, "question": question, "answer": done.text,
                                "finish_reason": done.finish_reason})  # fmt: skip
                print(f"{seed} {done.finish_reason:10} {question[:40]} | {done.text[:200]!r}")
        ended = Counter(answer["finish_reason"] for answer in answers)
        print(f"{engine.sampling}: {dict(ended)}")
        if asked.save:
            sampling = str(engine.sampling)
            save(asked.save, {"sampling": sampling, "ended": dict(ended), "answers": answers})


if __name__ == "__main__":
    main()
