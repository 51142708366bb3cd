"""Triton kernels of `palmette.training.gpu.convolution`; imported only where Triton is installed.

Feature maps are in channels-last order: matrices with a row for each pixel of each image.
"""

# ruff: noqa: ANN001, ANN201, ANN202
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def columns(x_ptr, out_ptr, rows, height, width, CHANNELS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    """Write the 3×3 pixels around each pixel as one row of `WIDTH` values, padded with zeros."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    lane = tl.arange(0, WIDTH)
    place, channel = lane // CHANNELS, lane % CHANNELS
    y = (row // width % height).to(tl.int32)[:, None] + (place // 3 - 1)[None, :]
    x = (row % width).to(tl.int32)[:, None] + (place % 3 - 1)[None, :]
    inside = (row < rows)[:, None] & (lane < 9 * CHANNELS)[None, :]
    seen = inside & (y >= 0) & (y < height) & (x >= 0) & (x < width)
    pixel = row[:, None] + (place // 3 - 1)[None, :] * width + (place % 3 - 1)[None, :]
    value = tl.load(x_ptr + pixel * CHANNELS + channel[None, :], mask=seen, other=0.0)
    tl.store(out_ptr + row[:, None] * WIDTH + lane[None, :], value, mask=(row < rows)[:, None])


@triton.jit
def statistics(z_ptr, means_ptr, squares_ptr, rows, channels, chunk, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Mean, and sum of squares about it, of each channel in each chunk of rows."""
    part = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    valid = column < channels
    first, last = part * chunk, tl.minimum(rows, (part + 1) * chunk)
    # Sums about the mean of the first rows round less.
    row = first + tl.arange(0, ROWS)
    inside = (row < last)[:, None] & valid[None, :]
    z = tl.load(z_ptr + row.to(tl.int64)[:, None] * channels + column[None, :], mask=inside, other=0.0)
    middle = tl.sum(z.to(tl.float32), 0) / tl.minimum(last - first, ROWS)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    square = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(first, last, ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row < last)[:, None] & valid[None, :]
        z = tl.load(z_ptr + row.to(tl.int64)[:, None] * channels + column[None, :], mask=inside, other=0.0)
        off = tl.where(inside, z.to(tl.float32) - middle[None, :], 0.0)
        total += off
        square += off * off
    off = tl.sum(total, 0) / (last - first)
    at = part * channels + column
    tl.store(means_ptr + at, middle + off, mask=valid)
    tl.store(squares_ptr + at, tl.sum(square, 0) - off * off * (last - first), mask=valid)


@triton.jit
def normalisation(
    means_ptr,
    squares_ptr,
    weight_ptr,
    shift_ptr,
    bias_ptr,
    running_mean_ptr,
    running_var_ptr,
    tracked_ptr,
    found_ptr,
    rows,
    channels,
    chunk,
    parts,
    momentum,
    eps,
    BIAS: tl.constexpr,
    PARTS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Statistics of each channel, the resulting factor and summand, and the running statistics.

    `found` has four rows: mean, reciprocal deviation, and the factor and summand that normalise.
    """
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    valid = column < channels
    total = tl.zeros([PARTS, COLUMNS], tl.float32)
    for start in range(0, parts, PARTS):
        part = start + tl.arange(0, PARTS)
        inside = (part < parts)[:, None] & valid[None, :]
        count = tl.minimum(rows - part * chunk, chunk).to(tl.float32)
        own = tl.load(means_ptr + part[:, None] * channels + column[None, :], mask=inside, other=0.0)
        total += tl.where(inside, own * count[:, None], 0.0)
    mean = tl.sum(total, 0) / rows
    total = tl.zeros([PARTS, COLUMNS], tl.float32)
    for start in range(0, parts, PARTS):
        part = start + tl.arange(0, PARTS)
        inside = (part < parts)[:, None] & valid[None, :]
        count = tl.minimum(rows - part * chunk, chunk).to(tl.float32)
        at = part[:, None] * channels + column[None, :]
        off = tl.load(means_ptr + at, mask=inside, other=0.0) - mean[None, :]
        square = tl.load(squares_ptr + at, mask=inside, other=0.0)
        total += tl.where(inside, square + off * off * count[:, None], 0.0)
    square = tl.sum(total, 0)
    deviation = tl.rsqrt(square / rows + eps)
    factor = tl.load(weight_ptr + column, mask=valid, other=0.0).to(tl.float32) * deviation
    summand = tl.load(shift_ptr + column, mask=valid, other=0.0).to(tl.float32) - mean * factor
    tl.store(found_ptr + column, mean, mask=valid)
    tl.store(found_ptr + channels + column, deviation, mask=valid)
    tl.store(found_ptr + 2 * channels + column, factor, mask=valid)
    tl.store(found_ptr + 3 * channels + column, summand, mask=valid)
    if BIAS:
        mean += tl.load(bias_ptr + column, mask=valid, other=0.0).to(tl.float32)
    running = tl.load(running_mean_ptr + column, mask=valid, other=0.0)
    tl.store(running_mean_ptr + column, running + momentum * (mean - running), mask=valid)
    running = tl.load(running_var_ptr + column, mask=valid, other=0.0)
    tl.store(running_var_ptr + column, running + momentum * (square / (rows - 1) - running), mask=valid)
    if tl.program_id(0) == 0:
        tl.store(tracked_ptr, tl.load(tracked_ptr) + 1)


@triton.jit
def _window(row, k: tl.constexpr, down, across, height, width, POOL: tl.constexpr):
    """Index of the k-th pixel in the window of each row, and whether it is inside the image."""
    y = (row // across % down) * POOL + k // POOL
    x = (row % across) * POOL + k % POOL
    image = row // across // down
    return (image.to(tl.int64) * height + y) * width + x, (y < height) & (x < width)


@triton.jit
def rectified(
    z_ptr,
    found_ptr,
    out_ptr,
    tops_ptr,
    rows,
    channels,
    down,
    across,
    height,
    width,
    POOL: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Normalise, ReLU and max-pool; with a pool, `tops` gets the maxima before normalisation."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < channels)[None, :]
    factor = tl.load(found_ptr + 2 * channels + column, mask=column < channels, other=0.0)[None, :]
    summand = tl.load(found_ptr + 3 * channels + column, mask=column < channels, other=0.0)[None, :]
    best = tl.full([ROWS, COLUMNS], float("-inf"), tl.float32)
    top = tl.zeros([ROWS, COLUMNS], tl.float32)
    for k in tl.static_range(POOL * POOL):
        pixel, _ = _window(row, k, down, across, height, width, POOL)
        z = tl.load(z_ptr + pixel[:, None] * channels + column[None, :], mask=inside, other=0.0).to(tl.float32)
        value = z * factor + summand
        stays = (value <= best) | (best != best)  # NaN stays NaN
        top = tl.where(stays, top, z)
        best = tl.where(stays, best, value)
    place = row.to(tl.int64)[:, None] * channels + column[None, :]
    best = tl.where(best < 0.0, 0.0, best)
    tl.store(out_ptr + place, best.to(out_ptr.dtype.element_ty), mask=inside)
    if POOL > 1:
        tl.store(tops_ptr + place, top.to(tops_ptr.dtype.element_ty), mask=inside)


@triton.jit
def gradient_sums(
    tops_ptr,
    gradients_ptr,
    found_ptr,
    sums_ptr,
    products_ptr,
    rows,
    channels,
    chunk,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Sums of the gradient before the ReLU, and of its products with normalised values, for each chunk."""
    part = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    valid = column < channels
    mean = tl.load(found_ptr + column, mask=valid, other=0.0)[None, :]
    deviation = tl.load(found_ptr + channels + column, mask=valid, other=0.0)[None, :]
    factor = tl.load(found_ptr + 2 * channels + column, mask=valid, other=0.0)[None, :]
    summand = tl.load(found_ptr + 3 * channels + column, mask=valid, other=0.0)[None, :]
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    product = tl.zeros([ROWS, COLUMNS], tl.float32)
    last = tl.minimum(rows, (part + 1) * chunk)
    for start in range(part * chunk, last, ROWS):
        row = start + tl.arange(0, ROWS)
        place = row.to(tl.int64)[:, None] * channels + column[None, :]
        inside = (row < last)[:, None] & valid[None, :]
        gradient = tl.load(gradients_ptr + place, mask=inside, other=0.0).to(tl.float32)
        top = tl.load(tops_ptr + place, mask=inside, other=0.0).to(tl.float32)
        gradient = tl.where(top * factor + summand > 0.0, gradient, 0.0)
        total += gradient
        product += gradient * (top - mean) * deviation
    at = part * channels + column
    tl.store(sums_ptr + at, tl.sum(total, 0), mask=valid)
    tl.store(products_ptr + at, tl.sum(product, 0), mask=valid)


@triton.jit
def sums_of_parts(sums_ptr, products_ptr, found_ptr, channels, parts, PARTS: tl.constexpr, COLUMNS: tl.constexpr):
    """Gradients of bias and weight, two rows, from the sums of the chunks."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([PARTS, COLUMNS], tl.float32)
    product = tl.zeros([PARTS, COLUMNS], tl.float32)
    for start in range(0, parts, PARTS):
        part = start + tl.arange(0, PARTS)
        inside = (part < parts)[:, None] & (column < channels)[None, :]
        at = part[:, None] * channels + column[None, :]
        total += tl.load(sums_ptr + at, mask=inside, other=0.0)
        product += tl.load(products_ptr + at, mask=inside, other=0.0)
    tl.store(found_ptr + column, tl.sum(total, 0), mask=column < channels)
    tl.store(found_ptr + channels + column, tl.sum(product, 0), mask=column < channels)


@triton.jit
def input_gradients(
    z_ptr,
    gradients_ptr,
    found_ptr,
    sums_ptr,
    out_ptr,
    pixels,
    rows,
    channels,
    down,
    across,
    pooled_down,
    pooled_across,
    height,
    width,
    POOL: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Gradient of the input of the norm. Incomplete windows at an edge get none from the pool."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    valid = column < channels
    mean = tl.load(found_ptr + column, mask=valid, other=0.0)[None, :]
    deviation = tl.load(found_ptr + channels + column, mask=valid, other=0.0)[None, :]
    factor = tl.load(found_ptr + 2 * channels + column, mask=valid, other=0.0)[None, :]
    summand = tl.load(found_ptr + 3 * channels + column, mask=valid, other=0.0)[None, :]
    of_sum = tl.load(sums_ptr + column, mask=valid, other=0.0)[None, :] / pixels
    of_product = tl.load(sums_ptr + channels + column, mask=valid, other=0.0)[None, :] / pixels
    y, x = row // across % down, row % across
    whole = (row < rows) & (y < pooled_down) & (x < pooled_across)
    image = (row // across // down).to(tl.int64)
    place = ((image * pooled_down + y) * pooled_across + x)[:, None] * channels + column[None, :]
    inside = whole[:, None] & valid[None, :]
    gradient = tl.load(gradients_ptr + place, mask=inside, other=0.0).to(tl.float32)
    best = tl.zeros([ROWS, COLUMNS], tl.float32)
    which = tl.full([ROWS, COLUMNS], -1, tl.int32)
    for k in tl.static_range(POOL * POOL):
        pixel, _ = _window(row, k, down, across, height, width, POOL)
        z = tl.load(z_ptr + pixel[:, None] * channels + column[None, :], mask=inside, other=0.0).to(tl.float32)
        value = z * factor + summand
        which = tl.where(value > best, k, which)
        best = tl.where(value > best, value, best)
    for k in tl.static_range(POOL * POOL):
        pixel, there = _window(row, k, down, across, height, width, POOL)
        own = ((row < rows) & there)[:, None] & valid[None, :]
        at = pixel[:, None] * channels + column[None, :]
        z = tl.load(z_ptr + at, mask=own, other=0.0).to(tl.float32)
        given = tl.where((which == k) & inside, gradient, 0.0)
        found = factor * (given - of_sum - (z - mean) * deviation * of_product)
        tl.store(out_ptr + at, found.to(out_ptr.dtype.element_ty), mask=own)
