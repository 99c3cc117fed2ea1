"""The data is found, and the cheap index of the standard library says what its files declare."""

from collections import Counter

from archdsl import resources


def test_grammar_library_and_zoo_are_found() -> None:
    assert '"model"' in resources.grammar_text()
    assert "attention" in resources.library_files()
    assert "gpt2" in resources.zoo_files()


def test_declarations_are_those_that_start_a_line() -> None:
    text = """
import "other.arch"
let depth = 3
block mlp(hidden) (x: [..., width]) {
  let inner = 4   # indented: belongs to mlp
  # block commented(x) {
}
inline  block add(x) { x += branch }
model gpt_2(layers = 12) {
variant gpt_2_xl = gpt_2(layers: 48)
# block also_commented
blocks = 3
"""
    assert resources.declared_names(text) == ["depth", "mlp", "add", "gpt_2", "gpt_2_xl"]


def test_no_name_of_the_library_is_declared_twice() -> None:
    declared = Counter(
        name
        for stem in resources.library_files()
        for name in resources.declared_names(resources.library_source(stem).text)
    )
    assert [name for name, times in declared.items() if times > 1] == []
    assert resources.library_index().keys() == declared.keys()


def test_library_sources_are_shown_as_std() -> None:
    source = resources.library_source("attention")
    assert source.name == "std/attention.arch"
    assert source.library


def test_error_pages_are_found_by_code_only() -> None:
    codes = resources.error_codes()
    assert codes
    assert codes == sorted(codes)
    assert all(resources.error_page(code) for code in codes)
    assert resources.error_page("E9999") is None
    assert resources.error_page("../pages/" + codes[0]) is None
