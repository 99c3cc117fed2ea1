"""What blocks of a model use that several devices share: helpers of the section `parallel`."""

SUM_GRADIENTS = '''
class SumGradients(torch.autograd.Function):
    """The tensor itself, which every device has; backwards, the sum of what each device makes of its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None
'''

USES_PARTLY = '''
def sum_gradients(module: nn.Module, mesh: DeviceMesh) -> None:
    """Add up the gradients of a module's own weights: each device uses them, whole, for its part of the work."""
    names = [name for name, _ in module.named_parameters(recurse=False)]

    def enter(*_: Any) -> None:
        for name in names:
            vars(module)[name] = SumGradients.apply(getattr(module, name), mesh.get_group())

    def leave(*_: Any) -> None:
        for name in names:
            vars(module).pop(name, None)

    module.register_forward_pre_hook(enter)
    module.register_forward_hook(leave, always_call=True)
'''

SHARDS = '''
class Shards:
    """What a block asks where several devices share its heads: `sizes` are those that are cut."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes
        self.mesh: DeviceMesh | None = None

    def cut(self, mesh: DeviceMesh, name: str) -> None:
        for size in self.sizes:
            if size % mesh.size():
                raise ValueError(f"{name}: {mesh.size()} devices cannot share {size} heads equally")
        self.mesh = mesh

    def of(self, size: int) -> int:
        """How many of them this device has."""
        return size if self.mesh is None else size // self.mesh.size()

    def shared(self, x: Tensor) -> Tensor:
        """A tensor that every device has whole and uses for its own heads."""
        return x if self.mesh is None else SumGradients.apply(x, self.mesh.get_group())

    def own(self, x: Tensor, axis: int) -> Tensor:
        """This device's part of a tensor that every device has whole."""
        if self.mesh is None:
            return x
        return self.shared(x).chunk(self.mesh.size(), axis)[self.mesh.get_local_rank()]
'''

SCORES = '''
def word_scores(x: Tensor, table: Tensor) -> Tensor:
    """x @ table.T. Where the words lie on several devices, each scores its own, and all get all scores."""
    if not isinstance(table, DTensor):
        return F.linear(x.to_local() if isinstance(x, DTensor) else x, table)
    if not isinstance(x, DTensor):
        x = DTensor.from_local(x, table.device_mesh, [Replicate()], run_check=False)
    return F.linear(x, table).redistribute(placements=[Replicate()]).to_local()
'''
