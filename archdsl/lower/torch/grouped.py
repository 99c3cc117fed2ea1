"""Helpers that every class of experts builds on: rows sorted by expert, and the product of each with its own matrix."""

GROUPS = '''
class Groups(NamedTuple):
    """Rows sorted by expert: where each expert's rows end, and the expert of each row."""

    ends: Tensor
    expert: Tensor
'''

BLOCKWISE_MATMUL = '''
def blockwise_matmul(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """The same product where sizes may not depend on the rows that each expert gets: they are moved apart into blocks
    of one expert each, three blocks for every expert at most."""
    rows, count = torch.arange(x.size(0), device=x.device), weight.size(0)
    size = -(-x.size(0) // (2 * count))
    starts = F.pad(ends[:-1], (1, 0))
    blocks = (ends - starts + size - 1) // size  # that an expert needs
    last = blocks.cumsum(0)
    expert = torch.searchsorted(ends, rows, right=True)
    place = rows - starts[expert] + (last - blocks)[expert] * size
    apart = x.new_zeros(3 * count * size, x.size(1)).index_copy(0, place, x).unflatten(0, (3 * count, size))
    expert = torch.searchsorted(last, torch.arange(3 * count, device=x.device), right=True).clamp(max=count - 1)
    return (apart @ weight[expert]).flatten(0, 1)[place]
'''

OPAQUE_MATMUL = '''
def opaque_matmul(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """The grouped product, into which no compiler looks: x [rows, in] by weight [experts, in, out]; or x [in, rows] by
    weight [rows, out], which gives [experts, in, out]."""
    return torch.ops.archdsl.opaque_matmul(x, weight, ends)


def opaque_shape(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    experts = ends.shape if weight.dim() == 2 else ()
    return x.new_empty(*experts, x.size(0), weight.size(-1))


def opaque_gradients(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
    x, weight, ends = context.saved_tensors
    gradient = gradient.contiguous()
    return opaque_matmul(gradient, weight.transpose(1, 2), ends), opaque_matmul(x.t(), gradient, ends), None


if not hasattr(torch.ops.archdsl, "opaque_matmul"):  # once for all files of a process
    torch.library.define("archdsl::opaque_matmul", "(Tensor x, Tensor weight, Tensor ends) -> Tensor")
    torch.library.impl("archdsl::opaque_matmul", "CPU", lambda x, weight, ends: F.grouped_mm(x, weight, offs=ends))
    torch.library.register_fake("archdsl::opaque_matmul", opaque_shape)
    torch.library.register_autograd(
        "archdsl::opaque_matmul",
        opaque_gradients,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
'''

GROUPED_MATMUL = '''
def grouped_matmul(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Each expert's rows of x times its own matrix."""
    if x.device.type != "meta" and torch.is_autocast_enabled(x.device.type):
        x, weight = (t.to(torch.get_autocast_dtype(x.device.type)) for t in (x, weight))
    compiling = torch.compiler.is_compiling()
    aligned = all(size * x.element_size() % 16 == 0 for size in weight.shape[1:])
    if hasattr(F, "grouped_mm") and aligned:
        if x.dtype == torch.bfloat16 or not compiling:
            return F.grouped_mm(x, weight, offs=ends)
        if x.device.type == "cpu" and not torch.compiler.is_exporting():  # the kernel is traced in bfloat16 only
            return opaque_matmul(x, weight, ends)
    if compiling:
        return blockwise_matmul(x, weight, ends)
    parts = x.tensor_split(ends[:-1].long().cpu())
    return torch.cat([part @ matrix for part, matrix in zip(parts, weight)])
'''
