"""Linear maps of few rows, as a step of decoding has them: a CPU is bound by reading the weights."""

LINEAR = '''
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias. For few rows in float32 on a CPU, oneDNN takes about half the time of `F.linear`; it gives
    no gradients."""
    plain = type(weight) in (Tensor, nn.Parameter) and x.is_cpu and x.dtype == weight.dtype == torch.float32
    exporting = torch.compiler.is_compiling() and not torch.compiler.is_dynamo_compiling()
    if plain and not (exporting or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu")):
        return torch.ops.archdsl.few_rows(x, weight, bias)
    return F.linear(x, weight, bias)


def few_rows(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The same by oneDNN, if PyTorch was built with it."""
    if not torch.backends.mkldnn.is_available():
        return F.linear(x, weight, bias)
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


if not hasattr(torch.ops.archdsl, "few_rows"):  # an op of its own: compiled code calls it as it is
    torch.library.define("archdsl::few_rows", "(Tensor x, Tensor weight, Tensor? bias) -> Tensor")
    torch.library.impl("archdsl::few_rows", ("CPU", "MkldnnCPU"), few_rows)
    torch.library.register_fake("archdsl::few_rows", lambda x, w, bias: x.new_empty(*x.shape[:-1], w.shape[0]))
'''

FEW_ROWS = '''
class DecodingLinear(nn.Linear):
    """A linear map of few rows, without gradients."""

    packed: Tensor | None = None  # the weight in the order in which oneDNN reads it fastest

    def forward(self, x: Tensor) -> Tensor:
        if self.packed is None:
            return linear(x, self.weight, self.bias)
        return torch.ops.archdsl.few_rows(x, self.packed, self.bias)


def for_decoding(model: nn.Module) -> Any:
    """The model as other modules around the same weights, whose linear maps are for few rows."""
    twins = {module: object.__new__(type(module)) for module in model.modules()}
    for module, twin in twins.items():  # past what wrappers make of copying and setting
        inner = {name: twins.get(child) for name, child in module._modules.items()}
        twin.__dict__.update(module.__dict__, _modules=inner)
        if type(module) is nn.Linear:
            twin.__class__ = DecodingLinear
    return twins[model]


def prepacked(model: nn.Module, rows: int = 1) -> Any:
    """The model for decoding `rows` sequences at a time on a CPU, without gradients: it shares all weights with this
    one, and holds packed copies of those of linear maps, which later changes of the weights do not reach."""
    packed = for_decoding(model)
    for module in packed.modules():
        if isinstance(module, DecodingLinear):
            module.packed = torch.ops.mkldnn._reorder_linear_weight(module.weight.detach(), rows)
    return packed
'''
