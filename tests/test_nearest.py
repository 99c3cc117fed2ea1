"""What is offered for a misspelt name."""

import pytest

from archdsl.diagnostics import nearest


@pytest.mark.parametrize("name", ["gpt-oss-20b", "GPT-OSS-20B", "gpt_oss.20b", "gpt oss 20b"])
def test_what_stands_between_words_makes_no_other_name(name: str) -> None:
    assert nearest(name, ["gpt_oss_120b", "gpt_oss_20b", "gpt2"]) == "gpt_oss_20b"
