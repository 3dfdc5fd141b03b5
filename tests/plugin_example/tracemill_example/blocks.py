"""blocks: an executor that runs elementwise operations a block of rows at a time."""

import torch

import tracemill as tm


class Blocks(tm.FusionExecutor):
    """Runs regions of elementwise operations in blocks of rows, so that what lies between them stays in the cache."""

    name = "blocks"
    rows = 64

    def can_fuse(self, bsym: tm.BoundSymbol) -> bool:
        shapes = {getattr(value, "shape", None) for value in (*bsym.inputs, *bsym.outputs)}
        pointwise = [torch.Tag.pointwise in operation.tags for operation in bsym.operations]
        return len(shapes) == 1 and shapes != {torch.Size()} and bool(pointwise) and all(pointwise)

    def fuse(self, region: tm.Region) -> tm.BoundSymbol:
        run = region.trace.callable("minimal")

        def by_blocks(*inputs: torch.Tensor) -> list[torch.Tensor]:
            made = [
                torch.empty_strided(out.shape, out.stride, dtype=out.dtype, device=out.device)
                for out in region.outputs
            ]
            rows = (tensor.split(self.rows) for tensor in (*inputs, *made))
            for block in zip(*rows, strict=True):
                results = run(*block[: len(inputs)])
                for place, result in zip(block[len(inputs) :], results, strict=True):
                    place.copy_(result)
            return made

        return region.bind(by_blocks)
