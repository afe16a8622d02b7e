"""Memory of earlier answers and of documents."""

import json
import threading

import numpy as np
import pytest

from edgespec.corpus.answers import Answers
from edgespec.corpus.suffix_array import indexed
from edgespec.drafters.memory import Memories, MemoryDrafter
from edgespec.types import Verified
from tests.helpers.growing import begin, chances, drafted

QUESTION = [90, 91, 92, 93]
ANSWER = [10, 11, 12, 13, 14, 15, 16, 17, 18]


def document(*tokens):
    return indexed([np.array(tokens, np.int32)])


class Talk:
    """A drafter with a memory, and requests to it."""

    def __init__(self, documents=(), answers=lambda owner: Answers(), vocab_size=100):
        self.drafter = MemoryDrafter(vocab_size, documents, answers and Memories(answers))

    def ask(self, prompt, owner=""):
        begin(self.drafter, prompt, owner=owner)
        return self

    def say(self, *tokens):
        for token in tokens:
            self.drafter.accept(Verified((token,)))
        return self

    def draft(self, limit=8):
        return list(drafted(self.drafter, limit).tokens)


def test_a_document_is_continued():
    talk = Talk([document(*range(20, 40))]).ask([1, 2, 22, 23, 24])
    assert talk.draft(4) == [25, 26, 27, 28]
    talk.say(25, 26)
    assert talk.draft(3) == [27, 28, 29]


def test_two_tokens_are_no_match():
    assert Talk([document(*range(20, 40))]).ask([1, 22, 23]).draft() == []


def test_a_match_is_found_again_after_other_words():
    talk = Talk([document(*range(20, 40))]).ask([22, 23, 24]).say(5)
    assert talk.draft() == []
    talk.say(30, 31, 32)
    assert talk.draft(2) == [33, 34]


def test_a_question_that_is_asked_again():
    """The question's end is remembered with its answer, so the first token is known already."""
    talk = Talk().ask(QUESTION).say(*ANSWER)
    assert talk.ask(QUESTION).draft(4) == ANSWER[:4]


def test_a_conversation_is_not_looked_up_in_itself():
    talk = Talk().ask(QUESTION).say(*ANSWER)
    follow_up = [*QUESTION, *ANSWER, 80, 81, *QUESTION]
    assert talk.ask(follow_up).draft() == []
    talk.say(30, 31, 32, 33)
    assert set(talk.ask([1, *QUESTION]).draft(2)) == {ANSWER[0], 30}  # another one: now it is
    assert talk.ask([81, *QUESTION]).draft(2) == [30, 31]


def test_owners_do_not_see_each_other():
    talk = Talk().ask(QUESTION, "alice").say(*ANSWER)
    assert talk.ask(QUESTION, "bob").draft() == []
    assert talk.ask(QUESTION).draft() == []
    assert talk.ask(QUESTION, "alice").draft(2) == ANSWER[:2]


def test_the_last_owners_are_remembered():
    talk = Talk()
    for i in range(40):
        talk.ask(QUESTION, f"key {i}").say(*ANSWER)
    assert talk.ask(QUESTION, "key 39").draft(2) == ANSWER[:2]
    assert talk.ask(QUESTION, "key 0").draft() == []


def test_nothing_is_remembered_where_that_is_off():
    talk = Talk(answers=None).ask(QUESTION).say(*ANSWER)
    assert talk.ask(QUESTION).draft() == []


def test_ids_beyond_the_vocabulary_are_never_guessed():
    """A damaged index, or one of a model with more tokens."""
    assert Talk([document(20, 21, 22, 150, 151)]).ask([20, 21, 22]).draft() == []


def test_several_continuations_are_a_tree():
    texts = [[20, 21, 22, last, 50] for last in (30, 30, 30, 31)]
    talk = Talk([indexed([np.array(text, np.int32) for text in texts])]).ask([20, 21, 22])
    draft = drafted(talk.drafter, 3)
    assert draft.tokens == (30, 50, 31)
    assert draft.parents == (-1, 0, -1)


def fields():
    """Return an index of six texts in which different values follow the same four tokens."""
    values = range(30, 36)
    texts = [(v + 55, v + 60, v + 30, v + 40, 25, 26, 27, 28, v, 50, 51) for v in values]
    return indexed([np.array(text, np.int32) for text in texts])


def at_a_value(talk):
    """Return the chance of the value that followed a shorter match than those learned from."""
    return chances(talk.ask([1, 62, 72, 25, 26, 27, 28]).drafter)[0]


def test_a_long_match_is_doubted_where_texts_part_and_such_matches_were_wrong():
    """Texts part at a value: the only place of a long match says little there."""
    talk = Talk([fields()], answers=None)
    hoped = at_a_value(talk)
    assert talk.draft(2) == [32, 50]
    for _ in range(100):
        talk.ask([85, 90, 60, 70, 25, 26, 27, 28]).say(2)
    doubted = at_a_value(talk)
    assert doubted < hoped / 2
    for _ in range(20):  # now a text is copied word for word
        talk.ask([85, 90, 60, 70, 25, 26, 27, 28]).say(30)
    assert at_a_value(talk) > (hoped + doubted) / 2


def test_places_where_texts_part_are_a_kind_of_their_own():
    """Values are never right, and what comes before them always is."""
    talk = Talk([fields()], answers=None)
    for _ in range(40):
        talk.ask([62, 72, 25, 26, 27]).say(28, 60)
    before, value = (
        chances(talk.ask(prompt).drafter)[0]
        for prompt in ([62, 72, 25, 26, 27], [62, 72, 25, 26, 27, 28])
    )
    assert before > 0.9
    assert value < 0.1


def test_what_is_stale_is_trusted_less_and_less():
    """A text that is begun like a remembered one and always goes on differently."""
    talk = Talk([document(*range(20, 40))]).ask([1])
    first = None
    for _ in range(40):
        talk.say(25, 26, 27)
        (prob,) = chances(talk.drafter)
        first = first or prob
        talk.say(60)
    assert prob < first / 3
    assert first < 0.5


def test_what_was_learned_goes_on_in_another_process():
    talk, again, fresh = (Talk([document(*range(20, 40))]) for _ in range(3))
    talk.ask([1])
    for _ in range(40):
        talk.say(25, 26, 27, 60)
    again.drafter.relearn(json.loads(json.dumps(talk.drafter.learned())))
    (sure, unsure) = [chances(one.ask([1]).say(25, 26, 27).drafter)[0] for one in (fresh, again)]
    assert unsure < sure / 2


def test_answers_are_written_when_it_is_closed(tmp_path):
    path = tmp_path / "answers"
    talk = Talk(answers=lambda owner: Answers(journal=path)).ask(QUESTION).say(*ANSWER)
    talk.drafter.close()
    talk.drafter.close()
    again = Talk(answers=lambda owner: Answers(journal=path))
    assert again.ask(QUESTION).draft(3) == ANSWER[:3]


@pytest.mark.parametrize("n", [1, 3])
def test_short_answers_are_not_worth_it(n):
    talk = Talk().ask(QUESTION).say(*ANSWER[:n])
    assert talk.ask(QUESTION).draft() == []


def two_talks():
    """Return the talks of two sessions of one engine."""
    memories = Memories(lambda owner: Answers())
    talks = Talk(answers=None), Talk(answers=None)
    for talk in talks:
        talk.drafter = MemoryDrafter(100, memories=memories)
    return talks


def test_what_was_answered_in_one_slot_is_drafted_from_in_another():
    one, two = two_talks()
    one.ask(QUESTION, "alice").say(*ANSWER).drafter.end()
    assert two.ask(QUESTION, "bob").draft() == []
    assert two.ask(QUESTION, "alice").draft(2) == ANSWER[:2]


def test_a_conversation_that_goes_on_in_another_slot_is_not_looked_up_in_itself():
    one, two = two_talks()
    one.ask(QUESTION).say(*ANSWER).drafter.end()
    assert two.ask([*QUESTION, *ANSWER, 80, 81, *QUESTION]).draft() == []
    two.say(30, 31, 32, 33).drafter.end()
    assert set(one.ask([1, *QUESTION]).draft(2)) == {ANSWER[0], 30}


def test_a_conversation_that_runs_does_not_end_because_another_one_begins():
    one, two = two_talks()
    one.ask(QUESTION).say(*ANSWER[:5])
    assert two.ask(QUESTION).draft() == []
    two.say(30, 31, 32, 33).drafter.end()
    one.say(*ANSWER[5:]).drafter.end()
    assert two.ask([1, *QUESTION]).draft(20).count(ANSWER[8]) == 1
    assert set(two.draft(2)) == {ANSWER[0], 30}


def test_the_same_question_in_two_slots_at_once_is_two_conversations():
    one, two = two_talks()
    one.ask(QUESTION)
    two.ask(QUESTION)
    for first, second in zip(ANSWER, range(30, 40), strict=False):
        one.say(first)
        two.say(second)
    one.drafter.end()
    two.drafter.end()
    assert one.ask([1, 2, *ANSWER[:3]]).draft(3) == ANSWER[3:6]
    assert two.ask([3, 4, 30, 31, 32]).draft(3) == [33, 34, 35]


def test_answers_of_all_slots_are_written_once(tmp_path):
    path = tmp_path / "answers.i32"
    memories = Memories(lambda owner: Answers(journal=path))
    drafters = [MemoryDrafter(100, memories=memories) for _ in range(2)]
    for drafter, last in zip(drafters, (30, 31), strict=True):
        begin(drafter, QUESTION)
        for token in (*ANSWER, last):
            drafter.accept(Verified((token,)))
    for drafter in drafters:
        drafter.close()
    assert Answers(journal=path).n_tokens == 2 * (len(QUESTION) + len(ANSWER) + 1)


def test_many_threads_remember_and_look_up():
    memories = Memories(lambda owner: Answers())
    failures = []

    def talk(number):
        drafter, rng = MemoryDrafter(100, memories=memories), np.random.default_rng(number)
        try:
            for _ in range(30):
                begin(
                    drafter, [*rng.integers(90, 99, 3).tolist(), *QUESTION], owner="ab"[number % 2]
                )
                for token in ANSWER:
                    drafted(drafter, 4)
                    drafter.accept(Verified((token,)))
                drafter.end()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=talk, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    drafter = MemoryDrafter(100, memories=memories)
    begin(drafter, QUESTION, owner="a")
    assert list(drafted(drafter, 3).tokens) == ANSWER[:3]
