"""`docs/zoo.md` and `docs/zoo/`: the zoo as a page of figures, and a page by family, from the specs alone."""

from collections.abc import Iterable
from html import escape
from itertools import groupby

from archdsl.diagnostics import error
from archdsl.zoo import ZooFamily, ZooModel, families

ABOUT = """\
Published architectures as specs: `specs/*.arch`, to be read, compiled and changed. `archdsl list` prints the table
below, `archdsl estimate gpt2_xl` the counts of one model by block, `archdsl show gpt2_xl --source` its spec, and
`archdsl show gpt2_xl -o gpt2_xl.svg` draws it. Every figure is computed from its spec: a block of the library is one
box, a frame is a block of the spec with how often it is stacked, and bars are shares of the parameters.
Published names are taken, too: `archdsl estimate Llama-3.1-8B`, or `"Gemma 3 27B"`."""


def zoo_pages() -> dict[str, str]:
    """Return the pages and figures by their path below `docs`: a table of all families and a figure of each, newest
    first; for each family its comment, sizes and figures.

    Raises ArchError for a spec of the zoo that is wrong."""
    found = families()
    for family in found:
        for problem in family.problems:
            raise error(problem.code, f"{problem.place}: {problem.message}")
    titles = _titles(found)
    newest = sorted(found, key=lambda f: (-(f.year or 0), titles[f.family].lower()))
    pages: dict[str, str] = {}
    first: dict[str, str] = {}
    for family in found:
        figures = _figures(family)
        pages |= {f"zoo/figures/{name}.svg": svg for name, svg in figures.items()}
        first[family.family] = next(iter(figures), "")
        pages[f"zoo/{family.family}.md"] = _page(family, titles[family.family], [*figures])
    parts = ["# The zoo", ABOUT, _overview(newest, titles)]
    for year, of_year in groupby(newest, key=lambda f: f.year):
        shown = [f for f in of_year if first[f.family]]
        cells = [_thumbnail(f, titles[f.family], first[f.family]) for f in shown]
        rows = ["<tr>\n" + "\n".join(cells[i : i + 3]) + "\n</tr>" for i in range(0, len(cells), 3)]
        parts += [f"## {year or 'Without a year'}", "<table>\n" + "\n".join(rows) + "\n</table>"]
    return {"zoo.md": "\n\n".join(parts) + "\n", **pages}


def _titles(found: Iterable[ZooFamily]) -> dict[str, str]:
    """A heading for each family, no two alike: the file's name tells apart what is called the same."""
    names = [f.name for f in found]
    return {f.family: f.name if names.count(f.name) == 1 else f"{f.name} ({f.family})" for f in found}


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _thumbnail(family: ZooFamily, title: str, figure: str) -> str:
    page = f"zoo/{family.family}.md"
    image = f'<a href="{page}"><img src="zoo/figures/{figure}.svg" width="260" alt="{escape(title)}"></a>'
    return f'<td align="center" valign="top"><a href="{page}"><b>{escape(title)}</b></a><br>{image}</td>'


def _overview(found: Iterable[ZooFamily], titles: dict[str, str]) -> str:
    rows = ["| family | year | kind | models | parameters | what is special |", "|---|---|---|---|---:|---|"]
    for f in found:
        kinds = ", ".join(dict.fromkeys(m.kind for m in f.models))
        counts = [m.parameters for m in f.models]
        sizes = f"{short(min(counts))} – {short(max(counts))}" if len(set(counts)) > 1 else short(counts[0])
        link = f"[{titles[f.family]}](zoo/{f.family}.md)"
        cells = (link, str(f.year or ""), kinds, str(len(counts)), sizes, f.about)
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


def _figures(family: ZooFamily) -> dict[str, str]:
    """The figures of a family: of each model that is no variant, and of its blocks that had to be one box. What looks
    like an earlier one is left out."""
    from archdsl import api
    from archdsl.report.svg import figure, svg
    from archdsl.resources import zoo_files

    found: dict[str, str] = {}
    seen: set[str] = set()
    for name in (m.name for m in family.models if m.declared == "model"):
        model = api.load(zoo_files()[family.family], model=name)
        scene, caption = figure(model)
        closed = [(f"{name}.{b.name}", *figure(model, b)) for b in scene.drawn.closed]
        for title, drawn, said in ((name, scene, caption), *closed):
            if (look := svg(drawn, "")) not in seen:
                seen.add(look)
                found[title] = svg(drawn, said)
    return found


def _page(family: ZooFamily, title: str, figures: list[str]) -> str:
    cited = ", ".join(s for s in (family.authors, str(family.year or "")) if s)
    intro = f"{cited}: {family.about}" if cited else family.about
    spec = f"[specs/{family.file}](../../specs/{family.file})"
    parts = [f"# {title}", f"{intro}\n{spec}".strip(), family.notes, _sizes(family.models)]
    parts += [f"![{name.replace('.', ': ')}](figures/{name}.svg)" for name in figures]
    return "\n\n".join(p for p in [*parts, "[All families](../zoo.md)"] if p) + "\n"


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
