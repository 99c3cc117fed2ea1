"""What a user gets from the distributions: they hold all the data, and run without the checkout."""

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from wheel import install, use

from archdsl import packages, resources

ROOT = Path(__file__).resolve().parent.parent
GPT2_PARAMETERS = 124_439_808

pytestmark = pytest.mark.slow


def _run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, unpacked."""
    folder = tmp_path_factory.mktemp("sdist")
    _run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, cwd=ROOT)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the source distribution as an installer builds it; needs no network."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    _run(*pip, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "-w", folder, sdist, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the wheel's content and nothing else."""
    folder = tmp_path_factory.mktemp("site")
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    _run(*pip, "install", "--no-deps", "--no-index", "--target", folder, wheel, cwd=folder)
    return folder


def _python(installed: Path, empty: Path, *arguments: str) -> str:
    """Run Python where only the installed wheel can be the compiler: not the checkout, nor the editable install."""
    env = {**os.environ, "PYTHONPATH": str(installed)}
    return _run(sys.executable, *arguments, cwd=empty, env=env)


def _files(folder: str, pattern: str) -> set[str]:
    return {path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob(pattern)}


def test_the_sdist_holds_what_building_and_testing_need(sdist: Path) -> None:
    expected = {"pyproject.toml", "constraints.txt", "Makefile", "LICENSE", "README.md", "CHANGELOG.md"}
    expected |= _files("archdsl", "*.py") | _files("archdsl/diagnostics/pages", "*.md") | _files("tests", "*.py")
    expected |= _files("grammars", "*.lark") | _files("specs", "*.arch") | _files("specs", "*.checkpoint")
    assert {name for name in expected if not (sdist / name).is_file()} == set()


def test_the_wheel_holds_the_package_and_its_data_only(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    expected = _files("archdsl", "*.py") | _files("archdsl/diagnostics/pages", "*.md") | {"archdsl/py.typed"}
    data = _files("grammars", "*.lark") | _files("specs", "*.arch") | _files("specs", "*.checkpoint")
    expected |= {f"archdsl/_data/{name}" for name in data}
    assert expected - names == set()
    assert {name for name in names if not name.startswith(("archdsl/", "archdsl-"))} == set()


def test_the_installed_package_finds_its_own_data(installed: Path, tmp_path: Path) -> None:
    files = "*resources.zoo_files().values(), *resources.library_files().values()"
    script = f"from archdsl import resources; print({files}, sep=chr(10))"
    found = [Path(line) for line in _python(installed, tmp_path, "-c", script).splitlines()]
    assert len(found) == len(resources.zoo_files()) + len(resources.library_files())
    assert all(path.is_relative_to(installed.resolve()) for path in found)


def test_check_accepts_a_spec_of_the_zoo(installed: Path, tmp_path: Path) -> None:
    _python(installed, tmp_path, "-m", "archdsl", "check", "gpt2")


def test_estimate_prints_json(installed: Path, tmp_path: Path) -> None:
    answer = json.loads(_python(installed, tmp_path, "-m", "archdsl", "estimate", "gpt2", "--json"))
    assert GPT2_PARAMETERS in set(_leaves(answer))


def test_the_wheel_works_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    """With nothing but what it requires; `make wheel` installs the extras, too."""
    use(install(wheel, tmp_path), tmp_path)


def test_what_is_advised_is_what_the_extras_hold() -> None:
    """The names that `archdsl.packages` advises are those of the extras, each without its version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {"onnx" if name == "onnx-cpu" else name: e for name, e in project["optional-dependencies"].items()}
    for part, names in packages.PARTS.items():
        assert [re.split("[>=]", requirement)[0] for requirement in extras[part]] == [*names]


def _leaves(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def test_the_lowest_versions_are_those_of_the_project() -> None:
    """constraints-lowest.txt pins each package that pyproject.toml names at the lowest version that it admits."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = [*project["dependencies"], *(r for group in project["optional-dependencies"].values() for r in group)]
    lowest = dict(re.match(r"([\w.-]+)>=([\d.]+)", r).groups() for r in named if ">=" in r)  # type: ignore[union-attr]
    lines = (ROOT / "constraints-lowest.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert pinned.keys() == lowest.keys()
    for name, version in lowest.items():
        # The first release of `1.2` may be 1.2.0, 1.2.1 or 1.2.0.2025: nothing between is admitted and left out.
        assert pinned[name] == version or pinned[name].startswith(f"{version}."), name


def test_what_is_told_of_the_project_stands_in_all_places() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"version: {project['version']}\n" in citation
    assert f"license: {project['license']}\n" in citation
    extras = project["optional-dependencies"]
    either = [re.sub(r"^onnxruntime-gpu", "onnxruntime", package.partition(";")[0]) for package in extras["onnx"]]
    assert [*dict.fromkeys(either)] == extras["onnx-cpu"]


def test_what_make_offers_is_there() -> None:
    """Each target that is declared or told of has a rule."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    rules = set(re.findall(r"^([\w-]+):", text, re.MULTILINE))
    declared = set(re.findall(r"^\.PHONY: (.*)", text, re.MULTILINE)[0].split())
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    told = {name for page in pages for name in re.findall(r"`make ([\w-]+)", page.read_text(encoding="utf-8"))}
    assert declared | told == rules
