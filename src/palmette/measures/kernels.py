"""The Triton kernel behind `palmette.measures.fused`; imported only where Triton is there."""

# ruff: noqa: ANN001, ANN201, ANN202
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def _add_power(total, error, x, exponent, KIND: tl.constexpr):
    """Add |x|^exponent to a float64 total; for a square root, what float32 lost goes to `error`."""
    if KIND == "same":
        total += x.to(tl.float64)
    elif KIND == "square":
        wide = x.to(tl.float64)
        total += wide * wide
    elif KIND == "sqrt":
        # A float64 root costs more than reading the value. The float32 root is off by up to 6e-8, always the
        # same way for the same value; its residual is exact in float32 and gives the missing digits.
        root = tl.sqrt_rn(x)
        total += root.to(tl.float64)
        error += tl.where(root > 0, tl.fma(-root, root, x) / (2 * root), 0.0)
    else:
        wide = x.to(tl.float64)
        total += tl.where(x > 0, tl.exp(exponent * tl.log(tl.where(x > 0, wide, 1.0))), 0.0)
    return total, error


@triton.jit
def power_sums(
    x_ptr,
    kept_ptr,
    out_ptr,
    width,
    row_stride,
    chunks,
    programs,
    p,
    q,
    P: tl.constexpr,
    Q: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Each program adds up one chunk of one row: out[0] = sum of |x|^p, out[1] = sum of |x|^q."""
    program = tl.program_id(0).to(tl.int64)
    row = program // chunks
    chunk = program % chunks
    lane = tl.arange(0, BLOCK).to(tl.int64)
    p_total = tl.zeros([BLOCK], tl.float64)
    q_total = tl.zeros([BLOCK], tl.float64)
    p_error = tl.zeros([BLOCK], tl.float32)
    q_error = tl.zeros([BLOCK], tl.float32)
    for start in range(chunk * BLOCK, width, chunks * BLOCK):
        column = start + lane
        inside = column < width
        x = tl.abs(tl.load(x_ptr + row * row_stride + column, mask=inside, other=0.0).to(tl.float32))
        if MASKED:
            kept = tl.load(kept_ptr + row * width + column, mask=inside, other=0)
            x = tl.where(kept != 0, x, 0.0)
        p_total, p_error = _add_power(p_total, p_error, x, p, P)
        q_total, q_error = _add_power(q_total, q_error, x, q, Q)
    tl.store(out_ptr + program, tl.sum(p_total + p_error.to(tl.float64), 0))
    tl.store(out_ptr + programs + program, tl.sum(q_total + q_error.to(tl.float64), 0))
