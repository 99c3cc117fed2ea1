"""Linear maps of few rows, as a step of decoding has them: a CPU is bound by reading the weights."""

LINEAR = '''
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias. For few rows in float32 on a CPU, oneDNN takes about half the time of `F.linear`; it gives
    no gradients."""
    if x.dtype == torch.float32 and plain(x, weight):
        return torch.ops.archdsl.few_rows(x, weight, bias)
    return F.linear(x, weight, bias)


def plain(x: Tensor, weight: Tensor) -> bool:
    """Whether a product is on a CPU, and nothing but its numbers is asked for."""
    exporting = torch.compiler.is_compiling() and not torch.compiler.is_dynamo_compiling()
    more = exporting or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu")
    return x.is_cpu and type(weight) in (Tensor, nn.Parameter) and x.dtype == weight.dtype and not more


def few_rows(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias by oneDNN, if PyTorch was built with it."""
    if torch.backends.mkldnn.is_available() and (x.dtype == torch.float32 or weight.is_mkldnn):
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return F.linear(x, weight, bias)


if not hasattr(torch.ops.archdsl, "few_rows"):  # once for all files of a process; compiled code calls it as it is
    torch.library.define("archdsl::few_rows", "(Tensor x, Tensor weight, Tensor? bias) -> Tensor")
    torch.library.impl("archdsl::few_rows", ("CPU", "MkldnnCPU"), few_rows)
    torch.library.register_fake("archdsl::few_rows", lambda x, w, bias: x.new_empty(*x.shape[:-1], w.shape[0]))
'''

DECODING_LINEAR = '''
class DecodingLinear(nn.Linear):
    """A linear map of few rows, without gradients."""

    packed: Tensor | None = None  # the weight in the order in which oneDNN reads it fastest

    def forward(self, x: Tensor) -> Tensor:
        if self.packed is None:
            return linear(x, self.weight, self.bias)
        return torch.ops.archdsl.few_rows(x, self.packed, self.bias)
'''

DECODING_GROUPED_LINEAR = '''
class DecodingGroupedLinear(GroupedLinear):
    """One weight matrix an expert, for few rows, without gradients."""

    def forward(self, x: Tensor, groups: Groups) -> Tensor:
        if not 0 < x.size(0) <= 64 or x.dtype != torch.float32 or not plain(x, self.weight):
            return super().forward(x, groups)
        y = torch.ops.archdsl.few_rows_by_expert(x, self.weight, groups.ends)
        return y if self.bias is None else y + self.bias[groups.expert]


def few_rows_by_expert(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Each expert's rows of x times its own matrix [experts, out, in]."""
    places = [0, *ends.tolist()]
    return torch.cat([few_rows(x[i:j], w) for i, j, w in zip(places, places[1:], weight) if i < j])


if not hasattr(torch.ops.archdsl, "few_rows_by_expert"):
    torch.library.define("archdsl::few_rows_by_expert", "(Tensor x, Tensor weight, Tensor ends) -> Tensor")
    torch.library.impl("archdsl::few_rows_by_expert", "CPU", few_rows_by_expert)
    torch.library.register_fake("archdsl::few_rows_by_expert", lambda x, w, ends: x.new_empty(len(x), w.size(1)))
'''

FOR_DECODING = '''
def for_decoding(model: nn.Module) -> Any:
    """The model as other modules around the same weights, whose linear maps are for few rows."""
    classes: dict[type, type] = {nn.Linear: DecodingLinear}
    twins = {module: object.__new__(type(module)) for module in model.modules()}
    for module, twin in twins.items():  # past what wrappers make of copying and setting
        inner = {name: twins.get(child) for name, child in module._modules.items()}
        twin.__dict__.update(module.__dict__, _modules=inner)
        twin.__class__ = classes.get(type(module), type(module))
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

CLASSES = "{nn.Linear: DecodingLinear}"
CLASSES_WITH_EXPERTS = "{nn.Linear: DecodingLinear, GroupedLinear: DecodingGroupedLinear}"


def few_rows_sources(experts: bool) -> dict[str, str]:
    """What a file needs to generate on a CPU, by name; with `experts` that have linear maps."""
    found = {"linear": LINEAR, "DecodingLinear": DECODING_LINEAR, "prepacked": FOR_DECODING}
    if experts:
        found["prepacked"] = FOR_DECODING.replace(CLASSES, CLASSES_WITH_EXPERTS)
        found["DecodingGroupedLinear"] = DECODING_GROUPED_LINEAR
    return {name: source.strip() for name, source in found.items()}
