"""Triton kernels of `palmette.training.gpu.steps`; imported only where Triton is installed."""

# ruff: noqa: ANN001, ANN201
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def prepare(
    images_ptr,
    labels_ptr,
    order_ptr,
    bits_ptr,
    place_ptr,
    table_ptr,
    out_ptr,
    answers_ptr,
    count,
    batch,
    CHANNELS: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDING: tl.constexpr,
    AUGMENT: tl.constexpr,
    CHANNELS_LAST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Gather images and labels of a batch of each member, flip, crop, and look up the pixels in a table."""
    one = tl.program_id(0)
    member, number = one // batch, one % batch
    place = member.to(tl.int64) * count + tl.load(place_ptr) + number
    index = tl.load(order_ptr + place)
    if tl.program_id(1) == 0:
        tl.store(answers_ptr + one, tl.load(labels_ptr + index))
    size: tl.constexpr = CHANNELS * HEIGHT * WIDTH
    lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = lane < size
    if CHANNELS_LAST:
        channel = lane % CHANNELS
        row = lane // CHANNELS // WIDTH
        column = lane // CHANNELS % WIDTH
    else:
        channel = lane // (HEIGHT * WIDTH)
        row = lane // WIDTH % HEIGHT
        column = lane % WIDTH
    if AUGMENT:
        bits = tl.load(bits_ptr + place)
        side: tl.constexpr = 2 * PADDING + 1
        top = ((bits >> 1) & 0x7FFFFFFF) % side
        left = (bits >> 32) % side
        row = tl.abs(row + top.to(tl.int32) - PADDING)
        row = (HEIGHT - 1) - tl.abs((HEIGHT - 1) - row)
        column = tl.abs(column + left.to(tl.int32) - PADDING)
        column = (WIDTH - 1) - tl.abs((WIDTH - 1) - column)
        column = tl.where((bits & 1) == 1, WIDTH - 1 - column, column)
    source = channel * (HEIGHT * WIDTH) + row * WIDTH + column
    pixel = tl.load(images_ptr + index * size + source, mask=inside, other=0).to(tl.int32)
    value = tl.load(table_ptr + channel * 256 + pixel, mask=inside, other=0.0)
    tl.store(out_ptr + one.to(tl.int64) * size + lane, value, mask=inside)


@triton.jit
def losses(
    scores_ptr,
    answers_ptr,
    gradients_ptr,
    totals_ptr,
    smoothing,
    batch,
    members,
    classes,
    member_stride,
    row_stride,
    column_stride,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Cross entropy of each member: add its sum and the right answers to the totals, and write its gradient."""
    member = tl.program_id(0)
    column = tl.arange(0, COLUMNS)[None, :]
    valid = column < classes
    loss = tl.zeros([ROWS], tl.float32)
    right = tl.zeros([ROWS], tl.int32)
    for start in range(0, batch, ROWS):
        row = start + tl.arange(0, ROWS)
        there = row < batch
        inside = there[:, None] & valid
        place = member * member_stride + row[:, None] * row_stride + column * column_stride
        score = tl.load(scores_ptr + place, mask=inside, other=0.0).to(tl.float32)
        score = tl.where(valid, score, float("-inf"))
        answer = tl.load(answers_ptr + member * batch + row, mask=there, other=0).to(tl.int32)
        top = tl.max(score, 1)
        power = tl.exp(score - top[:, None])
        sum = tl.sum(power, 1)
        is_answer = column == answer[:, None]
        logarithm = tl.where(valid, score - top[:, None] - tl.log(sum)[:, None], 0.0)
        of_answer = tl.sum(tl.where(is_answer, logarithm, 0.0), 1)
        each = -(1.0 - smoothing) * of_answer - smoothing / classes * tl.sum(logarithm, 1)
        loss += tl.where(there, each, 0.0)
        # The first of equal maxima, as `argmax` returns on most devices.
        first = tl.min(tl.where(score == top[:, None], column, COLUMNS), 1)
        right += (there & (first == answer)).to(tl.int32)
        target = tl.where(is_answer, 1.0 - smoothing, 0.0) + smoothing / classes
        gradient = (power / sum[:, None] - target) / batch
        tl.store(gradients_ptr + place, gradient.to(gradients_ptr.dtype.element_ty), mask=inside)
    total = totals_ptr + member
    tl.store(total, tl.load(total) + tl.sum(loss, 0).to(tl.float64))
    total += members
    tl.store(total, tl.load(total) + tl.sum(right, 0).to(tl.float64))


@triton.jit
def add_bias(out_ptr, bias_ptr, size, rows, columns, BIAS: tl.constexpr, RELU: tl.constexpr, BLOCK: tl.constexpr):
    """Add each member's bias to its rows, and apply ReLU."""
    lane = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = lane < size
    value = tl.load(out_ptr + lane, mask=inside, other=0.0).to(tl.float32)
    if BIAS:
        bias = lane // columns // rows * columns + lane % columns
        value += tl.load(bias_ptr + bias, mask=inside, other=0.0).to(tl.float32)
    if RELU:
        value = tl.where(value < 0.0, 0.0, value)  # NaN stays NaN
    tl.store(out_ptr + lane, value.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def bias_gradients(
    gradients_ptr,
    out_ptr,
    masked_ptr,
    bias_ptr,
    rows,
    columns,
    RELU: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Gradient before a ReLU from the gradient after it, and its sum over the rows of each member."""
    member = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, rows, ROWS):
        row = start + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & (column < columns)[None, :]
        place = (member.to(tl.int64) * rows + row[:, None]) * columns + column[None, :]
        gradient = tl.load(gradients_ptr + place, mask=inside, other=0.0).to(tl.float32)
        if RELU:
            out = tl.load(out_ptr + place, mask=inside, other=0.0).to(tl.float32)
            gradient = tl.where(out > 0.0, gradient, 0.0)
            tl.store(masked_ptr + place, gradient.to(masked_ptr.dtype.element_ty), mask=inside)
        total += gradient
    sums = tl.sum(total, 0).to(bias_ptr.dtype.element_ty)
    tl.store(bias_ptr + member * columns + column, sums, mask=column < columns)


@triton.jit
def squares(gradients, masks, firsts, sizes, sums_ptr, blocks, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    """Sum of squares of each block of each member's gradients, over several tensors."""
    member, block = tl.program_id(0), tl.program_id(1)
    for i in tl.static_range(len(gradients)):
        lane = (block - firsts[i]) * BLOCK + tl.arange(0, BLOCK)
        if (block >= firsts[i]) & ((block - firsts[i]) * BLOCK < sizes[i]):
            inside = lane < sizes[i]
            at = member.to(tl.int64) * sizes[i] + lane
            if (MASKED >> i) & 1:
                inside = inside & (tl.load(masks[i] + at, mask=inside, other=0) != 0)
            gradient = tl.load(gradients[i] + at, mask=inside, other=0.0).to(tl.float32)
            tl.store(sums_ptr + member * blocks + block, tl.sum(gradient * gradient))


@triton.jit
def clipping(sums_ptr, scale_ptr, clip_ptr, blocks, BLOCK: tl.constexpr):
    """Factor of each member's gradient that limits its norm to `clip`."""
    member = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, blocks, BLOCK):
        lane = start + tl.arange(0, BLOCK)
        total += tl.load(sums_ptr + member * blocks + lane, mask=lane < blocks, other=0.0)
    norm = tl.sqrt_rn(tl.sum(total, 0))
    scale = tl.load(clip_ptr) / (norm + 1e-6)
    # A gradient that is not finite affects only its member.
    tl.store(scale_ptr + member, tl.where(scale > 1.0, 1.0, scale))


@triton.jit
def sgd(
    gradients,
    masks,
    parameters,
    momenta,
    copies,
    firsts,
    sizes,
    scale_ptr,
    rate_ptr,
    numbers_ptr,
    MASKED: tl.constexpr,
    COPIED: tl.constexpr,
    CLIPPED: tl.constexpr,
    MOMENTUM: tl.constexpr,
    NESTEROV: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Mask, clip, decay, momentum and step of several parameters of each member, and copies in another dtype."""
    member, block = tl.program_id(0), tl.program_id(1)
    for i in tl.static_range(len(gradients)):
        lane = (block - firsts[i]) * BLOCK + tl.arange(0, BLOCK)
        if (block >= firsts[i]) & ((block - firsts[i]) * BLOCK < sizes[i]):
            inside = lane < sizes[i]
            at = member.to(tl.int64) * sizes[i] + lane
            gradient = tl.load(gradients[i] + at, mask=inside, other=0.0).to(tl.float32)
            parameter = tl.load(parameters[i] + at, mask=inside, other=0.0)
            if CLIPPED:
                gradient = gradient * tl.load(scale_ptr + member)
            if (MASKED >> i) & 1:
                kept = tl.load(masks[i] + at, mask=inside, other=0) != 0
                gradient = tl.where(kept, gradient, 0.0)
            gradient += tl.load(numbers_ptr) * parameter
            if MOMENTUM:
                momentum = tl.load(numbers_ptr + 1)
                running = momentum * tl.load(momenta[i] + at, mask=inside, other=0.0) + gradient
                tl.store(momenta[i] + at, running, mask=inside)
                gradient = gradient + momentum * running if NESTEROV else running
            parameter -= tl.load(rate_ptr) * gradient
            tl.store(parameters[i] + at, parameter, mask=inside)
            if (COPIED >> i) & 1:
                tl.store(copies[i] + at, parameter.to(copies[i].dtype.element_ty), mask=inside)
