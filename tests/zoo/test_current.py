"""Well-known sizes of the families of decoders since 2023: their counts, and that each is its checkpoint's network."""

import json
from pathlib import Path

import pytest

import archdsl
from archdsl.interop.convert import import_folder
from archdsl.interop.sameness import Form
from archdsl.passes.flatten import flatten

pytestmark = pytest.mark.slow

CONFIGS = json.loads((Path(__file__).parents[1] / "interop" / "published.json").read_text(encoding="utf-8"))
"""The `config.json` of checkpoints, by name."""

# As `transformers` counts its class for the released configuration; of Gemma 3 and Llama 4 the text model.
PUBLISHED = {
    "gemma2:gemma2_2b": 2_614_341_888,
    "gemma2:gemma2_9b": 9_241_705_984,
    "gemma2:gemma2_27b": 27_227_128_320,
    "gemma3:gemma3_1b": 999_885_952,
    "gemma3:gemma3_270m": 268_098_176,
    "gemma3:gemma3_4b": 3_880_263_168,
    "gemma3:gemma3_12b": 11_766_034_176,
    "gemma3:gemma3_27b": 27_009_346_304,
    "glm4_5:glm4_5": 352_797_814_784,
    "glm4_5:glm4_5_air": 106_852_245_504,
    "gpt_oss:gpt_oss_120b": 116_829_156_672,
    "gpt_oss:gpt_oss_20b": 20_914_757_184,
    "granite3:granite3_2b": 2_533_531_648,
    "granite3:granite3_8b": 8_170_864_640,
    "llama3_2:llama3_2_1b": 1_235_814_400,
    "llama3_2:llama3_2_3b": 3_212_749_824,
    "llama4:llama4_scout": 107_769_861_120,
    "llama4:llama4_maverick": 400_711_848_960,
    "mistral_small:mistral_small_24b": 23_572_403_200,
    "mistral_small:mistral_7b_v0_3": 7_248_023_552,
    "mistral_small:mistral_nemo_12b": 12_247_782_400,
    "mistral_small:mistral_large_123b": 122_610_069_504,
    "olmo2:olmo2_7b": 7_298_617_344,
    "olmo2:olmo2_1b": 1_484_916_736,
    "olmo2:olmo2_13b": 13_716_198_400,
    "olmo2:olmo2_32b": 32_234_279_936,
    "olmo3:olmo3_7b": 7_298_011_136,
    "olmo3:olmo3_32b": 32_233_522_176,
    "phi4:phi4_14b": 14_659_507_200,
    "phi4:phi3_mini": 3_821_079_552,
    "phi4:phi3_medium": 13_960_238_080,
    "pythia:pythia_12b": 11_846_072_320,
    "pythia:pythia_14m": 14_067_712,
    "pythia:pythia_70m": 70_426_624,
    "pythia:pythia_160m": 162_322_944,
    "pythia:pythia_410m": 405_334_016,
    "pythia:pythia_1b": 1_011_781_632,
    "pythia:pythia_1_4b": 1_414_647_808,
    "pythia:pythia_2_8b": 2_775_208_960,
    "pythia:pythia_6_9b": 6_857_302_016,
    "qwen2_5:qwen2_5_7b": 7_615_616_512,
    "qwen2_5:qwen2_5_0_5b": 494_032_768,
    "qwen2_5:qwen2_5_1_5b": 1_543_714_304,
    "qwen2_5:qwen2_5_3b": 3_085_938_688,
    "qwen2_5:qwen2_5_14b": 14_770_033_664,
    "qwen2_5:qwen2_5_32b": 32_763_876_352,
    "qwen2_5:qwen2_5_72b": 72_706_203_648,
    "qwen3:qwen3_8b": 8_190_735_360,
    "qwen3:qwen3_0_6b": 596_049_920,
    "qwen3:qwen3_1_7b": 1_720_574_976,
    "qwen3:qwen3_4b": 4_022_468_096,
    "qwen3:qwen3_14b": 14_768_307_200,
    "qwen3:qwen3_32b": 32_762_123_264,
    "qwen3:qwen3_30b_a3b": 30_532_122_624,
    "qwen3:qwen3_235b_a22b": 235_093_634_560,
    "smollm:smollm2_1_7b": 1_711_376_384,
    "smollm:smollm2_135m": 134_515_008,
    "smollm:smollm2_360m": 361_821_120,
    "smollm:smollm3_3b": 3_075_098_624,
}
ACTIVE = {
    "glm4_5:glm4_5": 33_632_251_904,
    "glm4_5:glm4_5_air": 13_424_123_904,
    "gpt_oss:gpt_oss_120b": 5_711_982_912,
    "gpt_oss:gpt_oss_20b": 4_187_440_704,
    "llama4:llama4_scout": 17_172_894_720,
    "llama4:llama4_maverick": 17_184_691_200,
    "qwen3:qwen3_30b_a3b": 3_353_032_704,
    "qwen3:qwen3_235b_a22b": 22_190_763_520,
}
# What their authors say, in billions; gpt-oss counts what is active without the embedding.
ROUNDED = {
    "gemma2:gemma2_2b": 2.6,
    "gemma2:gemma2_9b": 9.2,
    "gemma2:gemma2_27b": 27.2,
    "glm4_5:glm4_5_air": 106.9,
    "gpt_oss:gpt_oss_120b": 116.8,
    "gpt_oss:gpt_oss_20b": 20.9,
    "llama3_2:llama3_2_1b": 1.2,
    "llama3_2:llama3_2_3b": 3.2,
    "llama4:llama4_maverick": 400.7,
    "mistral_small:mistral_small_24b": 23.6,
    "mistral_small:mistral_nemo_12b": 12.2,
    "mistral_small:mistral_large_123b": 122.6,
    "phi4:phi4_14b": 14.7,
    "phi4:phi3_mini": 3.8,
    "phi4:phi3_medium": 14.0,
    "qwen2_5:qwen2_5_0_5b": 0.5,
    "qwen2_5:qwen2_5_1_5b": 1.5,
    "qwen2_5:qwen2_5_3b": 3.1,
    "qwen2_5:qwen2_5_7b": 7.6,
    "qwen2_5:qwen2_5_14b": 14.8,
    "qwen2_5:qwen2_5_32b": 32.8,
    "qwen2_5:qwen2_5_72b": 72.7,
    "qwen3:qwen3_0_6b": 0.6,
    "qwen3:qwen3_1_7b": 1.7,
    "qwen3:qwen3_4b": 4.0,
    "qwen3:qwen3_8b": 8.2,
    "qwen3:qwen3_14b": 14.8,
    "qwen3:qwen3_32b": 32.8,
    "qwen3:qwen3_30b_a3b": 30.5,
    "qwen3:qwen3_235b_a22b": 235.1,
}

CHECKPOINTS = {
    "gemma2_2b": "gemma2_2b",
    "gemma2_9b": "gemma2_9b",
    "gemma2_27b": "gemma2_27b",
    "gemma3_270m": "gemma3_270m",
    "gemma3_1b": "gemma3_1b",
    "gpt_oss_20b": "gpt_oss_20b",
    "gpt_oss_120b": "gpt_oss_120b",
    "granite3_2b": "granite_2b",
    "granite3_8b": "granite_8b",
    "llama3_2_1b": "llama32_1b",
    "llama4_scout": "llama4_scout_text",
    "mistral_7b_v0_3": "mistral_7b_v03",
    "mistral_nemo_12b": "mistral_nemo",
    "mistral_small_24b": "mistral_small",
    "olmo2_1b": "olmo2_1b",
    "olmo2_7b": "olmo2_7b",
    "olmo3_7b": "olmo3_7b",
    "phi3_mini": "phi3_mini_4k",
    "phi4_14b": "phi4",
    "pythia_160m": "pythia_160m",
    "qwen2_5_0_5b": "qwen2_0.5b",
    "qwen2_5_7b": "qwen25_7b",
    "qwen3_0_6b": "qwen3_0.6b",
    "qwen3_4b": "qwen3_4b",
    "qwen3_8b": "qwen3_8b",
    "qwen3_30b_a3b": "qwen3_30b_a3b",
    "smollm2_135m": "smollm2_135m",
    "smollm2_360m": "smollm_360m",
    "smollm3_3b": "smollm3_3b",
}
"""Models of the zoo, and the config of which each is."""


def test_counts_are_what_authors_say() -> None:
    assert {name: round(PUBLISHED[name] / 1e9, 1) for name in ROUNDED} == ROUNDED


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_size_is_the_network_of_its_checkpoint(name: str, tmp_path: Path) -> None:
    """The checkpoint's config, imported, is the same graph: number by number, weight by weight."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIGS[CHECKPOINTS[name]]["config"]), encoding="utf-8")
    import_folder(config, tmp_path / "imported.arch", weights=False)
    imported, model = archdsl.load(tmp_path / "imported.arch"), archdsl.load(name)
    assert Form(flatten(model)).paired(Form(flatten(imported))) is not None
    assert str(model.context) == str(imported.context)
