"""The Triton kernel behind `palmette.measures.cuda_sums`; imported only where Triton is there."""

# ruff: noqa: ANN001, ANN201, ANN202
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def _power(x, exponent):
    """x^exponent in float64; 0 stays 0, and a NaN stays one."""
    wide = tl.where(x == 0, 1.0, x.to(tl.float64))
    return tl.where(x == 0, 0.0, tl.exp(exponent * tl.log(wide)))


@triton.jit
def _add(
    p_total, q_total, missing, roots, values, x, p, q, P: tl.constexpr, Q: tl.constexpr, NARROW: tl.constexpr
):
    """Add x^p and x^q to the totals or, with NARROW, the root to `roots` and x to `values`."""
    if P == "sqrt":
        inverse = tl.inline_asm_elementwise(
            "rsqrt.approx.ftz.f32 $0, $1;", "=r,r", [tl.maximum(x, 1e-37)], tl.float32, True, 1
        )
        root = x * inverse
        if NARROW:
            root = (root.to(tl.int32, bitcast=True) & -64).to(tl.float32, bitcast=True)
            roots += root
        else:
            p_total += root.to(tl.float64)
        # x - root^2 in one instruction; from -root, Triton makes two.
        residual = tl.inline_asm_elementwise(
            "{ .reg .f32 n; neg.f32 n, $1; fma.rn.f32 $0, n, $1, $2; }", "=r,r,r", [root, x], tl.float32, True, 1
        )
        missing = tl.fma(residual, inverse, missing)
    elif P == "same":
        p_total += x.to(tl.float64)
    else:
        p_total += _power(x, p)
    if Q == "same":
        if NARROW:
            values += x
        else:
            q_total += x.to(tl.float64)
    elif Q == "square":
        wide = x.to(tl.float64)
        q_total += wide * wide
    else:
        q_total += _power(x, q)
    return p_total, q_total, missing, roots, values


@triton.jit
def power_sums(
    x_ptr,
    kept_ptr,
    powers_ptr,
    out_ptr,
    width,
    row_stride,
    chunks,
    programs,
    P: tl.constexpr,
    Q: tl.constexpr,
    NARROW: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Each program adds up one chunk of one row: out[0] = sum of |x|^p, out[1] = sum of |x|^q.

    A float64 root would cost more than reading the value. The float32 root from `rsqrt` lacks its last digits,
    always the same way for the same value; the residual x - root^2, exact in float32, gives them back to first
    order, and `missing` adds them up. With NARROW, of 16-bit values four are added in float32 before they are
    widened, and four roots, each cut to 18 bits first: that rounds nothing among magnitudes of similar size, and
    what was cut is part of the residual.
    """
    program = tl.program_id(0)
    row = (program // chunks).to(tl.int64)
    chunk = (program % chunks).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    p_total = tl.zeros([BLOCK], tl.float64)
    q_total = tl.zeros([BLOCK], tl.float64)
    missing = tl.zeros([BLOCK], tl.float32)
    p = tl.load(powers_ptr)  # exponents as float64: an argument would be rounded to float32
    q = tl.load(powers_ptr + 1)
    x_row = x_ptr + row * row_stride
    kept_row = kept_ptr + row * width
    end = tl.zeros([], tl.int64) + width
    whole = end // (BLOCK * BLOCKS) * (BLOCK * BLOCKS)
    for start in range(chunk * (BLOCK * BLOCKS), whole, chunks * (BLOCK * BLOCKS)):
        roots = tl.zeros([BLOCK], tl.float32)
        values = tl.zeros([BLOCK], tl.float32)
        for block in tl.static_range(BLOCKS):
            x = tl.load(x_row + start + (block * BLOCK + lane))
            if MASKED:
                x = tl.where(tl.load(kept_row + start + (block * BLOCK + lane)) != 0, x, 0.0)
            p_total, q_total, missing, roots, values = _add(
                p_total, q_total, missing, roots, values, tl.abs(x.to(tl.float32)), p, q, P, Q, NARROW
            )
        if NARROW:
            p_total += roots.to(tl.float64)
            q_total += values.to(tl.float64)
    # What is left over of the row goes to the last program that works on it.
    if chunk == chunks - 1:
        for rest in range(whole, end, BLOCK):
            inside = lane < (end - rest).to(tl.int32)
            roots = tl.zeros([BLOCK], tl.float32)
            values = tl.zeros([BLOCK], tl.float32)
            x = tl.load(x_row + rest + lane, mask=inside, other=0)
            if MASKED:
                x = tl.where(tl.load(kept_row + rest + lane, mask=inside, other=0) != 0, x, 0.0)
            p_total, q_total, missing, roots, values = _add(
                p_total, q_total, missing, roots, values, tl.abs(x.to(tl.float32)), p, q, P, Q, NARROW
            )
            p_total += roots.to(tl.float64)
            q_total += values.to(tl.float64)
    tl.store(out_ptr + program, tl.sum(p_total + 0.5 * missing.to(tl.float64), 0))
    tl.store(out_ptr + programs + program, tl.sum(q_total, 0))
