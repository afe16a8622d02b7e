"""Files of prompts for training."""

import json

import pytest

from edgespec import ConfigError
from edgespec.train.prompts import fingerprint, read_prompts


def user(text):
    return [{"role": "user", "content": text}]


def test_each_line_of_a_text_is_a_prompt_and_each_prompt_comes_once(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("Go left.\n\n  Stop.  \nGo left.\n", "utf-8")
    assert read_prompts([path]) == [user("Go left."), user("Stop.")]


@pytest.mark.parametrize(("value", "messages"), [
    ("Stop.", user("Stop.")),
    ({"prompt": "Stop."}, user("Stop.")),
    ({"instruction": "Shorten.", "input": "A long text."}, user("Shorten.\n\nA long text.")),
    ({"instruction": "Stop.", "input": ""}, user("Stop.")),
    ({"question_id": 1, "turns": ["First?", "Second?"]}, user("First?")),
    ({"messages": [{"role": "system", "content": "You are a robot."}, *user("Go."),
                   {"role": "assistant", "content": "I go."}]},
     [{"role": "system", "content": "You are a robot."}, *user("Go.")]),
])  # fmt: skip
def test_json_lines_in_all_their_forms(tmp_path, value, messages):
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps(value) + "\n", "utf-8")
    assert read_prompts([path]) == [messages]


@pytest.mark.parametrize(("name", "content", "message"), [
    ("a.txt", b"\n \n", "no prompts"),
    ("a.jsonl", b'{"answer": "42"}\n', "no prompts"),
    ("a.jsonl", b'{"messages": [{"role": "user", "content": [1]}]}\n', "no prompts"),
    ("a.jsonl", b"{", "no JSON"),
    ("a.json", b'{"prompt": "one"}', "no list of prompts"),
    ("a.txt", b"\xff\xfe\x00", "no text in UTF-8"),
])  # fmt: skip
def test_what_holds_no_prompts_is_refused(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read_prompts([path])


def test_a_folder_is_its_files_of_prompts(tmp_path):
    (tmp_path / "b.txt").write_text("Go left.\n")
    (tmp_path / "a.jsonl").write_text('{"prompt": "Stop."}\n')
    (tmp_path / "README.md").write_text("No prompt.\n")
    assert read_prompts([tmp_path]) == [user("Stop."), user("Go left.")]
    (empty := tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="empty has no"):
        read_prompts([empty])


def test_own_texts_with_something_of_an_evaluation_are_left_out(tmp_path):
    evaluation = tmp_path / "questions.txt"
    evaluation.write_text("Where is the charger?\nno\n")  # it is in "knows", but no word of it
    said = {"role": "assistant", "content": "There."}
    kept = [*user("Stop."), said, *user("Go.")]
    own = [
        [*user("Where is  the charger?"), said, *user("Go.")], kept,
        *([{"role": "passage", "content": text}] for text in (
            "They ask: WHERE is the charger? Nobody knows.", "is the charger?", "Nobody knows.",
        )),
    ]  # fmt: skip
    assert read_prompts([], [evaluation], own) == [kept, own[-1]]


def test_prompts_of_an_evaluation_are_left_out(tmp_path):
    training, evaluation = tmp_path / "training.txt", tmp_path / "questions.jsonl"
    training.write_text("Go to the door.\nwhat  is\tTHIS?\nStop.\nand that?\n")
    evaluation.write_text('{"turns": ["What is this?", "And that?"]}\n{"prompt": "stop."}\n')
    assert read_prompts([training], [evaluation]) == [user("Go to the door.")]
    with pytest.raises(ConfigError, match="no prompts"):
        read_prompts([evaluation], [training, evaluation])


def test_the_fingerprint_depends_on_texts_and_their_order():
    one, other = [user("a"), user("b")], [user("b"), user("a")]
    assert fingerprint(one) == fingerprint(list(one)) != fingerprint(other)
