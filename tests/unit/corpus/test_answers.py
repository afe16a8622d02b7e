"""Earlier answers: which are remembered, and the file they are kept in."""

import logging
import stat

import numpy as np
import pytest

from edgespec.corpus import answers as module
from edgespec.corpus.answers import Answers


def answer(i, n=8):
    return [1000 * i + k for k in range(n)]


def known(answers):
    """Return which of the first answers are found."""
    return [i for i in range(1, 10) if any(a.find(answer(i)[:3]).length for a in answers.arrays)]


def tell(answers, *tokens):
    """Let answers be written and remembered."""
    for one in tokens:
        answers.write(one)
        answers.add([one])


def test_what_is_added_is_found():
    answers = Answers()
    assert answers.arrays == []
    answers.add([answer(1), answer(2)])
    answers.add([answer(3)])
    assert known(answers) == [1, 2, 3]
    assert answers.n_tokens == 24


def test_the_least_recently_given_go_first(monkeypatch):
    monkeypatch.setattr(module, "_LEAST_FRESH", 0)
    answers = Answers(most=40)
    for i in (1, 2, 3, 4, 5, 1, 6):  # the first is given again
        answers.add([answer(i)])
        assert answers.n_tokens <= 40
    assert answers.n_tokens == 40
    assert known(answers) == [1, 3, 4, 5, 6]


def test_many_new_answers_are_indexed_with_the_old():
    answers = Answers()
    for i in range(1, 10):
        answers.add([answer(i), [50_000 + i] * 999])
    assert known(answers) == list(range(1, 10))
    assert len(answers.arrays) <= 2


def test_answers_are_there_after_a_restart(tmp_path):
    path = tmp_path / "folder" / "answers"
    tell(Answers(journal=path), answer(1), answer(2))
    tell(Answers(journal=path), answer(3))
    assert known(Answers(journal=path)) == [1, 2, 3]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_the_file_is_bounded_and_keeps_the_latest(tmp_path):
    path = tmp_path / "answers"
    for i in range(200):
        tell(Answers(most=100, journal=path), answer(i % 10 + 10))
    tell(Answers(most=100, journal=path), answer(1))
    assert path.stat().st_size < 800
    assert known(Answers(most=100, journal=path)) == [1]


def test_an_answer_that_was_not_written_whole_is_left_out(tmp_path):
    path = tmp_path / "answers"
    tell(Answers(journal=path), answer(1), answer(2))
    for cut in range(1, 37):
        path.write_bytes(path.read_bytes()[:-1])
        again = Answers(journal=path)
        assert known(again) == [1]
        if cut in (1, 4, 8, 36):
            whole = path.read_bytes()
            tell(again, answer(3))
            assert known(Answers(journal=path)) == [1, 3]
            path.write_bytes(whole)


@pytest.mark.parametrize("foreign", [b"", b"Edge", b"something else\n" * 9, b"EdgeAns1" + b"\xff"])
def test_a_foreign_file_is_begun_anew(tmp_path, foreign, caplog):
    path = tmp_path / "answers"
    path.write_bytes(foreign)
    with caplog.at_level(logging.WARNING):
        answers = Answers(journal=path)
    assert known(answers) == []
    assert ("holds no answers" in caplog.text) == (not foreign.startswith(b"EdgeAns1"))
    tell(answers, answer(1))
    assert known(Answers(journal=path)) == [1]


@pytest.mark.parametrize("wrong", [1 << 20, (1 << 31) - 1, -2])
def test_answers_with_ids_that_cannot_be_are_left_out(tmp_path, wrong):
    path = tmp_path / "answers"
    tell(Answers(journal=path), answer(1), answer(2), answer(3))
    values = np.fromfile(path, "<i4")
    values[values == 2003] = wrong
    values.tofile(path)
    again = Answers(journal=path)
    assert known(again) == [1, 3]
    tell(again, answer(4))
    assert known(Answers(journal=path)) == [1, 3, 4]


def test_a_folder_that_cannot_be_written(tmp_path, caplog):
    (tmp_path / "file").touch()
    answers = Answers(journal=tmp_path / "file" / "answers")
    tell(answers, answer(1))
    assert known(answers) == [1]
    assert "cannot be kept" in caplog.text
