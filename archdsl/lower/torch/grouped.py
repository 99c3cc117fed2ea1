"""Helpers that every class of experts builds on: rows sorted by expert, and the product of each with its own matrix."""

GROUPS = '''
class Groups(NamedTuple):
    """Rows sorted by expert: where each expert's rows end, and the expert of each row."""

    ends: Tensor
    expert: Tensor
'''

GROUPED_MATMUL = '''
def grouped_matmul(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Each expert's rows of x times its own matrix."""
    compiling = torch.compiler.is_compiling()
    aligned = all(size * x.element_size() % 16 == 0 for size in weight.shape[1:])
    if hasattr(F, "grouped_mm") and aligned and (x.dtype == torch.bfloat16 or not compiling):
        return F.grouped_mm(x, weight, offs=ends)
    if compiling:  # the grouped kernel is traced in bfloat16 only, and how many rows an expert gets is not known
        expert = torch.searchsorted(ends, torch.arange(x.size(0), device=x.device), right=True)
        y = x.new_zeros(x.size(0), weight.size(-1))
        for i, matrix in enumerate(weight):
            y = torch.where((expert == i)[:, None], x @ matrix, y)
        return y
    parts = x.tensor_split(ends[:-1].long().cpu())
    return torch.cat([part @ matrix for part, matrix in zip(parts, weight)])
'''
