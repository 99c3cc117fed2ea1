"""What is offered for a misspelt name."""

from collections.abc import Callable

import pytest

import archdsl
from archdsl import zoo
from archdsl.diagnostics import ArchError, nearest
from archdsl.frontend.load import find_spec


@pytest.mark.parametrize("name", ["gpt-oss-20b", "GPT-OSS-20B", "gpt_oss.20b", "gpt oss 20b"])
def test_what_stands_between_words_makes_no_other_name(name: str) -> None:
    assert nearest(name, ["gpt_oss_120b", "gpt_oss_20b", "gpt2"]) == "gpt_oss_20b"


@pytest.mark.parametrize("spelled", [str.upper, lambda n: n.replace("_", "-"), lambda n: n.replace("_", " ").title()])
def test_every_model_of_the_zoo_is_found_in_another_spelling(spelled: Callable[[str], str]) -> None:
    for entry in archdsl.list_zoo():
        found = find_spec(spelled(entry.name))
        assert found.path is not None
        assert (found.path.name, found.model or entry.name) == (entry.file, entry.name)


PUBLISHED = {
    "Qwen3-8B": "qwen3_8b",
    "Gemma 3 27B": "gemma3_27b",
    "gpt-oss-20b": "gpt_oss_20b",
    "Llama-3.1-8B": "llama3_8b",
    "DeepSeek-V3": "deepseek_v3",
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_names(name: str) -> None:
    model = archdsl.load(name)
    assert model.name == PUBLISHED[name]
    listed = zoo.chosen(zoo.families(zoo.worded(name.split())), text=name)
    assert model.name in [m.name for f in listed for m in f.models]


def test_a_family_has_its_name_in_another_spelling() -> None:
    assert archdsl.load("Phi-4").name == archdsl.load("phi4").name


def test_a_name_that_two_models_have_in_another_spelling_is_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = next(e for e in archdsl.list_zoo() if e.name == "qwen3_8b")
    monkeypatch.setattr("archdsl.frontend.load.list_zoo", lambda: (entry, entry._replace(name="qwen_38b")))
    with pytest.raises(ArchError, match="did you mean"):
        find_spec("Qwen3-8B")
