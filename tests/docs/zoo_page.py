"""`docs/zoo.md`: the zoo on one page, from the specs alone."""

import re
from collections.abc import Iterable

from archdsl.diagnostics import error
from archdsl.zoo import ZooFamily, ZooModel, families


def zoo_page() -> str:
    """The page: a table of all families, then for each its comment, sizes, drawings and text.

    Raises ArchError for a spec of the zoo that is wrong."""
    found = families()
    for family in found:
        for problem in family.problems:
            raise error(problem.code, f"{problem.place}: {problem.message}")
    titles = _titles(found)
    parts = [
        "# The zoo",
        "Published architectures as specs: `specs/*.arch`, to be read, compiled and changed. `archdsl list` prints\n"
        "the table below, `archdsl estimate gpt2_xl` the counts of one model by block, and\n"
        "`archdsl show gpt2_xl --diagram` its drawing. Counts are exact, and follow from the specs; beside them\n"
        "stands the rule of thumb 12 · layers · d², divided into the parameters without embeddings. In the drawings a\n"
        "block of the library is one box, and a frame is a block of the spec with how often it is stacked.",
        _overview(found, titles),
        *(_section(family, titles[family.family]) for family in found),
    ]
    return "\n\n".join(parts) + "\n"


def _titles(found: Iterable[ZooFamily]) -> dict[str, str]:
    """A heading for each family, no two alike: the file's name tells apart what is called the same."""
    names = [f.name for f in found]
    return {f.family: f.name if names.count(f.name) == 1 else f"{f.name} ({f.family})" for f in found}


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _overview(found: Iterable[ZooFamily], titles: dict[str, str]) -> str:
    rows = ["| family | year | kind | models | parameters | what is special |", "|---|---|---|---|---:|---|"]
    for f in found:
        kinds = ", ".join(dict.fromkeys(m.kind for m in f.models))
        counts = [m.parameters for m in f.models]
        sizes = f"{short(min(counts))} – {short(max(counts))}" if len(set(counts)) > 1 else short(counts[0])
        title = titles[f.family]
        cells = (f"[{title}](#{_anchor(title)})", str(f.year or ""), kinds, str(len(counts)), sizes, f.about)
        rows.append(f"| {' | '.join(map(_cell, cells))} |")
    return "\n".join(rows)


def short(count: int) -> str:
    """A count in three digits: 124M, 1.56B, 671B."""
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if count >= 0.9995 * size:
            value = count / size
            digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
            return f"{value:.{digits}f}{unit}"
    return str(count)


def _section(family: ZooFamily, title: str) -> str:
    from archdsl import api
    from archdsl.report.diagram import diagram
    from archdsl.report.mermaid import mermaid
    from archdsl.resources import zoo_files

    cited = ", ".join(s for s in (family.authors, str(family.year or "")) if s)
    intro = f"{cited}: {family.about}" if cited else family.about
    spec = f"[specs/{family.file}](../specs/{family.file})"
    parts = [f"## {title}", f"{intro}\n{spec}".strip(), family.notes, _sizes(family.models)]
    path = zoo_files()[family.family]
    seen: set[str] = set()
    for model in (m for m in family.models if m.declared == "model"):
        drawn = diagram(api.load(path, model=model.name))
        for name, picture in ((model.name, drawn), *((b.name, diagram(b)) for b in drawn.closed)):
            drawing = f"```mermaid\n{mermaid(picture)}```"
            if drawing not in seen:
                parts.append(_folded(f"<code>{name}</code>, drawn", drawing) if seen else drawing)
                seen.add(drawing)
    text = path.read_text(encoding="utf-8")
    parts.append(_folded("The spec", f"```arch\n{text.strip()}\n```"))
    return "\n\n".join(p for p in parts if p)


def _folded(summary: str, content: str) -> str:
    return f"<details>\n<summary>{summary}</summary>\n\n{content}\n\n</details>"


def _sizes(models: Iterable[ZooModel]) -> str:
    """The models with their counts; columns that would say nothing are left out."""
    found = list(models)
    experts = any(m.active != m.parameters for m in found)
    layered = any(m.rule_of_thumb for m in found)
    heads = ["model", "parameters", *(["active"] if experts else []), "without embeddings"]
    heads += ["12 · layers · d²", "exact / rule of thumb"] if layered else []
    rows = [f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
    for m in found:
        cells = [f"`{m.name}`", f"{m.parameters:,}", *([f"{m.active:,}"] if experts else []), f"{m.non_embedding:,}"]
        if layered:
            cells += [f"{m.rule_of_thumb:,}", f"{m.ratio:.4f}"] if m.rule_of_thumb else ["", ""]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)
