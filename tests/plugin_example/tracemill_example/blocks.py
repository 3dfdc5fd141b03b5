"""blocks: an executor that runs elementwise operations a block of rows at a time."""

import torch

import tracemill as tm


class Blocks(tm.FusionExecutor):
    """Runs regions of elementwise operations in blocks of rows, so that what lies between them stays in the cache."""

    name = "blocks"
    rows = 64

    def can_fuse(self, bsym: tm.BoundSymbol) -> bool:
        shapes = {getattr(value, "shape", None) for value in (*bsym.inputs, *bsym.outputs)}
        return (
            len(shapes) == 1
            and shapes != {torch.Size()}
            and all(
                torch.Tag.pointwise in getattr(inner.sym.impl, "tags", ())
                for inner in bsym.subsymbols
            )
        )

    def fuse(self, region: tm.Region) -> tm.BoundSymbol:
        run = region.trace.callable("minimal")

        def by_blocks(*inputs: torch.Tensor) -> list[torch.Tensor]:
            blocks = zip(*(tensor.split(self.rows) for tensor in inputs), strict=True)
            results = [run(*block) for block in blocks]
            return [torch.cat(parts) for parts in zip(*results, strict=True)]

        return region.bind(by_blocks)
