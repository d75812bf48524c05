"""The kernel of the query-dependent bias against the equation, on a GPU and interpreted."""

import importlib.util
import os
import subprocess
import sys

import pytest
import torch

from ngsan.nn.geometry import GeometryBias, query_bias, relative_geometry

SIZES = [(2, 5, 8, 64, 4), (3, 36, 8, 64, 6), (1, 70, 3, 20, 4), (2, 1, 1, 8, 4)]
"""Images, regions, heads, width and features, the last three odd on purpose."""

on_gpu = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("ignore"),
]


def drawn(images, regions, heads, width, features, device="cpu"):
    """Geometry, weight, bias and query."""
    random = torch.Generator().manual_seed(regions)
    shapes = [
        (images, regions, regions, features),
        (width, features),
        (width,),
        (images, regions, heads, width),
    ]
    return [torch.randn(shape, generator=random).to(device) for shape in shapes]


def by_equation(geometry, weight, bias, query):
    """Eq. 9 and 12 in double precision, as an explicit sum."""
    geometry, weight, bias, query = (part.double() for part in (geometry, weight, bias, query))
    embedded = ((geometry.unsqueeze(-2) * weight).sum(-1) + bias).clamp(min=0)
    return (query.transpose(1, 2).unsqueeze(3) * embedded.unsqueeze(1)).sum(-1)


def check_against_equation(function, device, *, dtype, tolerance):
    """Values and gradients of `function` for all sizes."""
    for size in SIZES:
        torch.compiler.reset()
        geometry, *learned = drawn(*size, device=device)
        learned[2] = learned[2].to(dtype)
        for part in learned:
            part.requires_grad_()
        wanted = by_equation(geometry, *learned)
        slope = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(1)).to(device)
        wanted_slopes = torch.autograd.grad(wanted, learned, slope.double())
        found = function(geometry, *learned)
        # A gradient that is not contiguous, as in attention.
        strided = slope.to(found.dtype).transpose(2, 3).contiguous().transpose(2, 3)
        found_slopes = torch.autograd.grad(found, learned, strided)
        for mine, right in zip((found, *found_slopes), (wanted, *wanted_slopes), strict=True):
            worst = (mine - right).abs().max().item()
            assert worst <= tolerance * max(right.abs().max().item(), 1), size


def test_products_equal_the_equation():
    check_against_equation(query_bias, "cpu", dtype=torch.float32, tolerance=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or torch.cuda.is_available(),
    reason="needs Triton; with a GPU the compiled kernel is tested instead",
)
def test_interpreted_kernel_equals_the_equation():
    # Triton decides at import time whether to interpret.
    script = "from tests.nn import test_query_bias as here; here.interpret()"
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def interpret():
    """Runs the kernels without a GPU and without PyTorch's operators around them."""
    from ngsan.nn import query_bias_kernel

    def plain(kernel):
        return kernel

    class Interpreted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *inputs):
            ctx.save_for_backward(*inputs)
            return query_bias_kernel.forwards(*inputs, plain)

        @staticmethod
        def backward(ctx, slope):
            to_query, sums = query_bias_kernel.backwards(*ctx.saved_tensors, slope, plain)
            return None, sums[:-1].T, sums[-1], to_query

    check_against_equation(Interpreted.apply, "cpu", dtype=torch.float32, tolerance=1e-5)


class TestOnAGpu:
    pytestmark = on_gpu

    @pytest.mark.parametrize(
        ("dtype", "tolerance"),
        [(torch.float32, 1e-5), (torch.bfloat16, 1e-2), (torch.float16, 2e-3)],
    )
    @pytest.mark.parametrize("compiled", [False, True])
    def test_kernel_equals_the_equation(self, dtype, tolerance, compiled):
        from ngsan.nn import query_bias_kernel

        function = query_bias_kernel.query_bias
        if compiled:
            function = torch.compile(function, fullgraph=True, dynamic=False)
        check_against_equation(function, "cuda", dtype=dtype, tolerance=tolerance)

    @pytest.mark.parametrize("signed", [False, True])
    def test_module_uses_the_kernel_and_equals_the_cpu(self, signed):
        bias = GeometryBias("query", dim=32, heads=4, width=16, signed=signed)
        random = torch.Generator().manual_seed(0)
        boxes = torch.rand(2, 9, 4, generator=random) + 0.1
        x = torch.randn(2, 9, 32, generator=random)
        wanted = bias(relative_geometry(boxes, signed=signed), x)
        bias.cuda()
        found = bias(relative_geometry(boxes.cuda(), signed=signed), x.cuda())
        assert "query_bias" in found.grad_fn.name()
        torch.testing.assert_close(found.cpu(), wanted, rtol=1e-4, atol=1e-5)

    def test_gradient_of_the_geometry(self):
        geometry, *learned = drawn(2, 5, 4, 16, 4, device="cuda")
        geometry.requires_grad_()
        query_bias(geometry, *learned).sum().backward()
        assert geometry.grad.abs().max() > 0
