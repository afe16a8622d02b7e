"""How pictures are prepared for vision encoders, against transformers' own processors."""

import json
from pathlib import Path

import numpy as np
import pytest

from edgespec import EngineMissing, ModelError
from edgespec.errors import ModelNotFound, UnknownArchitecture
from tests.helpers import image_processors

pytest.importorskip("PIL")
families = pytest.importorskip("edgespec.backends.onnx.families", exc_type=EngineMissing)
llava = pytest.importorskip("edgespec.backends.onnx.families.llava")

RECORDED = Path(__file__).parents[2] / "data/image_processors.json"
SMOLVLM = image_processors.CASES["SmolVLM-256M"][1]
SIGLIP = image_processors.CASES["SigLIP"][1] | {"image_processor_type": "SiglipImageProcessor"}


def family(folder, kind, settings, processor=None, most_tokens=1 << 20, **config):
    """Return a family that reads these settings."""
    config = {"vision_config": {"patch_size": 14}, "scale_factor": 2} | config
    files = {
        "config.json": config | {"model_type": kind},
        "preprocessor_config.json": settings,
        "processor_config.json": processor or {},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return families.family_of(folder, most_tokens)


@pytest.mark.parametrize("case", image_processors.CASES)
def test_pictures_are_prepared_as_by_transformers(case, tmp_path):
    name, settings = image_processors.CASES[case]
    cuts = "longest_edge" in settings["size"]
    kind = "llava" if not cuts else "smolvlm" if "SmolVLM" in name else "idefics3"
    of = family(tmp_path, kind, settings | {"image_processor_type": name})
    recorded = json.loads(RECORDED.read_text())[case]
    for pixels, expected in zip(image_processors.pictures(), recorded, strict=True):
        height, width, _ = pixels.shape
        tiles = of.tiles(pixels)
        made = np.stack([of.normalised(tile) for tile in tiles])
        assert list(made.shape) == expected["shape"]
        assert made.shape[2:] == (of.height, of.width)
        np.testing.assert_allclose(image_processors.sampled(made), expected["values"], atol=1e-5)
        around = of.around(width, height)
        assert len(around) == len(tiles) + 1
        if cuts:
            rows, columns = expected["rows"], expected["columns"]
            assert rows * columns == (len(tiles) - 1 if len(tiles) > 1 else 0)
            assert "".join(around).count(f"_col_{columns}>") == rows


def test_squares_are_named_by_row_and_column(tmp_path):
    of = family(tmp_path, "smolvlm", SMOLVLM | {"size": {"longest_edge": 1024}})
    begin, whole = "<fake_token_around_image>", "<global-img>"
    assert of.around(300, 200) == [
        f"{begin}<row_1_col_1>",
        f"{begin}<row_1_col_2>",
        f"\n{begin}<row_2_col_1>",
        f"{begin}<row_2_col_2>",
        f"\n\n{begin}{whole}",
        begin,
    ]
    of = family(tmp_path, "smolvlm", SMOLVLM | {"size": {"longest_edge": 512}})
    assert of.around(300, 200) == [begin + whole, begin]


@pytest.mark.parametrize(
    ("most", "squares"), [(64, 0), (191, 0), (192, 2), (320, 4), (832, 12), (1024, 12), (1088, 16)]
)
def test_a_picture_has_no_more_tokens_than_allowed(tmp_path, most, squares):
    of = family(tmp_path, "smolvlm", SMOLVLM, {"image_seq_len": 64}, most)
    pixels = np.zeros((100, 100 + (squares == 12) * 40 + (squares == 2) * 100, 3), np.uint8)
    tiles = of.tiles(pixels)
    assert len(tiles) == (squares + 1 if squares else 1)
    assert len(of.around(pixels.shape[1], 100)) == len(tiles) + 1
    assert len(tiles) * of.n_tokens <= most
    assert len(tiles) * of.n_tokens <= of.most_tokens() <= most


@pytest.mark.parametrize(
    ("tower", "processor", "config", "n"),
    [
        ("siglip_vision_model", {"vision_feature_select_strategy": "full"}, {}, 729),
        ("siglip_vision_model", {}, {"vision_feature_select_strategy": "full"}, 729),
        ("clip_vision_model", {"vision_feature_select_strategy": "default"}, {}, 729),
        ("clip_vision_model", {"vision_feature_select_strategy": "full"}, {}, 730),
        ("clip_vision_model", {"patch_size": 16, "num_additional_image_tokens": 1}, {}, 576),
        ("siglip_vision_model", {"patch_size": 16}, {}, 575),
    ],
)
def test_the_tokens_of_llava(tmp_path, tower, processor, config, n):
    vision = {"patch_size": 14, "model_type": tower}
    of = family(tmp_path, "llava", SIGLIP, processor, vision_config=vision, **config)
    assert of.n_tokens == of.most_tokens() == n


def test_settings_of_newer_repositories_are_in_one_file(tmp_path):
    told = {"image_seq_len": 64, "image_processor": SMOLVLM}
    of = family(tmp_path, "smolvlm", {}, told)
    assert (of.height, of.n_tokens) == (512, 64)


@pytest.mark.parametrize(
    ("kind", "changed", "message"),
    [
        ("llava", {"image_mean": None}, "image_mean of the picture's preparation is None"),
        ("llava", {"image_std": [0.5, 0.5]}, "image_std .* a number for each colour"),
        ("llava", {"image_std": [0.5, 0, 0.5]}, "image_std .* numbers other than 0"),
        ("llava", {"image_mean": [float("nan")] * 3}, "image_mean .* is expected"),
        ("llava", {"image_mean": "grey"}, "image_mean .* 'grey'"),
        ("llava", {"rescale_factor": 0}, "rescale_factor"),
        ("llava", {"resample": 17}, "resample .* a number from 0 to 5"),
        ("llava", {"resample": []}, "resample"),
        ("llava", {"size": {"height": 1 << 29, "width": 8}}, "height .* at most 8192 pixels"),
        ("llava", {"size": {"height": -1, "width": 8}}, "height is -1"),
        ("llava", {"size": {}}, "height .* 'missing'"),
        ("llava", {"size": None}, "shortest_edge"),
        ("llava", {"image_processor_type": "CLIPImageProcessor"}, "height .* 'missing'"),
        (
            "llava",
            {"image_processor_type": "CLIPImageProcessor", "crop_size": 400},
            "crop_size .* at most the size",
        ),
        ("smolvlm", {"size": {"longest_edge": "2048"}}, "longest_edge is '2048'"),
        ("smolvlm", {"max_image_size": [512]}, "longest_edge .* 'missing'"),
    ],
)
def test_damaged_settings(tmp_path, kind, changed, message):
    told = SMOLVLM if kind == "smolvlm" else SIGLIP
    with pytest.raises(ModelError, match=message) as error:
        family(tmp_path, kind, told | changed)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


def test_a_model_without_the_settings(tmp_path):
    with pytest.raises(ModelNotFound, match=r"there is no preprocessor_config\.json"):
        family(tmp_path, "llava", {})


@pytest.mark.parametrize("kind", ["qwen2_vl", "gemma3", None, 3, ["llava"]])
def test_other_families_are_refused_by_name(tmp_path, kind):
    with pytest.raises(UnknownArchitecture, match="for the families idefics3, smolvlm, llava"):
        family(tmp_path, kind, SIGLIP)


def test_settings_that_leave_a_picture_no_token(tmp_path):
    with pytest.raises(ModelError, match=r"the number of tokens .* at least 1"):
        family(tmp_path, "smolvlm", SMOLVLM, vision_config={"patch_size": 8000})


def test_a_long_picture_is_made_smaller_before_it_is_padded(tmp_path, monkeypatch):
    padded = SIGLIP | {"image_processor_type": "LlavaImageProcessor", "do_pad": True}
    padded["do_center_crop"] = False
    of = family(tmp_path, "llava", padded)
    monkeypatch.setattr(llava, "_LARGEST", 400)
    sides = []
    resized = of.resized

    def noted(pixels, *size):
        sides.append(pixels.shape)
        return resized(pixels, *size)

    monkeypatch.setattr(of, "resized", noted)
    (tile,) = of.tiles(np.zeros((10, 2000, 3), np.uint8))
    assert tile.shape[:2] == (of.height, of.width)
    assert sides == [(10, 2000, 3), (400, 400, 3)]
