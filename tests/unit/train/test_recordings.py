"""What is recorded in the folder of a training."""

import os
import stat

import pytest

import edgespec
from edgespec import ConfigError, EdgeSpecError
from edgespec.train.formats import ANSWERS
from edgespec.train.recordings import MANIFEST, Recording, Recordings, alone, begin

DONE = Recording(3, 0, "done", "", [1, 2, 3, 4, 5], 2, True)
SKIPPED = Recording(4, 0, "skipped", "too long")


def test_what_was_added_is_read_again(tmp_path):
    recordings = Recordings(tmp_path)
    for each in (DONE, SKIPPED):
        recordings.add(each)
    again = Recordings(tmp_path)
    assert again.all == [DONE, SKIPPED]
    assert again.done == [DONE]
    assert again.n_tokens == 3


@pytest.mark.skipif(os.name != "posix", reason="other systems have other permissions")
def test_only_the_user_can_read_them(tmp_path):
    folder = tmp_path / "new"
    begin(folder, {})
    Recordings(folder).add(DONE)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())]
    assert modes == [0o700, 0o600, 0o600]


@pytest.mark.parametrize("n_cut", [1, 5, 40])
def test_a_line_that_a_kill_cut_is_dropped(tmp_path, n_cut):
    recordings = Recordings(tmp_path)
    for each in (DONE, SKIPPED):
        recordings.add(each)
    path = tmp_path / ANSWERS
    path.write_bytes(path.read_bytes()[:-n_cut])
    cut = Recordings(tmp_path)
    assert cut.all == [DONE]
    cut.add(SKIPPED)
    assert Recordings(tmp_path).all == [DONE, SKIPPED]


def test_a_damaged_file_is_refused(tmp_path):
    (tmp_path / ANSWERS).write_text('{"prompt": "x"}\n', "utf-8")
    with pytest.raises(EdgeSpecError, match="is damaged"):
        Recordings(tmp_path)


def test_a_folder_goes_on_only_with_what_it_was_begun_with(tmp_path):
    folder = tmp_path / "new"
    begin(folder, {"target": "a", "prompts": "o"})
    begin(folder, {"target": "a", "prompts": "p"})  # nothing was recorded
    Recordings(folder).add(DONE)
    begin(folder, {"target": "a", "prompts": "p"})
    with pytest.raises(ConfigError, match="begun with other prompts; give a new folder"):
        begin(folder, {"target": "a", "prompts": "q"})
    (tmp_path / "other.txt").touch()
    with pytest.raises(ConfigError, match="not empty"):
        begin(tmp_path, {})


def test_two_trainings_do_not_share_a_folder(tmp_path):
    folder = tmp_path / "new"
    with alone(folder):
        begin(folder, {})
        with pytest.raises(ConfigError, match="another training runs in"), alone(folder):
            pass
    with alone(folder):
        begin(folder, {})


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").touch()
    refused = pytest.raises(ConfigError, match="a file is where a folder has to be")
    with refused, alone(tmp_path / "file"):
        pass


def test_forgetting_leaves_the_head_and_what_is_not_its_own(tmp_path):
    folder = tmp_path / "new"
    begin(folder, {})
    Recordings(folder).add(DONE)
    of_kind, head = folder / "eagle3", folder / "eagle3" / "head"
    begin(of_kind, {})
    head.mkdir()
    kept = [of_kind / "eagle3-a.gguf", head / "model.safetensors", folder / "notes.txt"]
    for path in (*kept, of_kind / "state.pt"):
        path.write_bytes(b"x")
    assert edgespec.forget_training(folder) > 0
    manifests = {folder / MANIFEST, of_kind / MANIFEST}
    assert {path for path in folder.rglob("*") if path.is_file()} == {*kept, *manifests}
    begin(folder, {"prompts": "others"})  # a new training
    begin(of_kind, {"start": None})
    Recordings(folder).add(DONE)
    with pytest.raises(ConfigError, match="begun with other prompts"):
        begin(folder, {"prompts": "yet others"})
    with pytest.raises(ConfigError, match=f"has no {MANIFEST}"):
        edgespec.forget_training(of_kind / "head")
