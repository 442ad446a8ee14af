"""Triton kernels of a ResNet with BatchNorm, each over all members of a stack at once.

Activations are [S, B, H, W, C] in the compute dtype; statistics, gradients and updates are in the accumulator
dtype (float32; float64 in exact comparisons). A program works on a tile of one member's pixels and all of its
channels. The image b of member s exists if b < counts[s, step]; all others read as zero and add nothing, so
clients with short last batches, or no batch left, need no other code.

BatchNorm never makes a pass of its own: a convolution adds its outputs' sums to `sums`, whoever reads the output
normalises while loading, and the backward convolutions collect the sums that the gradient of BatchNorm needs.

Shapes: S members, B images, H x W pixels, C channels, P parameters, Q normalised channels, T steps.
"""

import triton
import triton.language as tl


@triton.jit
def _count(counts, step, steps, s):
    return tl.load(counts + s * steps + tl.load(step)).to(tl.int32)


@triton.jit
def _affine(stats, gamma, beta, c, s, P, Q, size, EVAL: tl.constexpr, EPS: tl.constexpr):
    """Return scale, shift, mean and 1/std of channels c from sums, or from running statistics."""
    mean = tl.load(stats + s * 2 * Q + c)
    var = tl.load(stats + s * 2 * Q + Q + c)
    if not EVAL:
        mean = mean / size
        var = tl.maximum(var / size - mean * mean, 0.0, propagate_nan=tl.PropagateNan.ALL)
    inverse = 1.0 / tl.sqrt(var + EPS)
    scale = tl.load(gamma + s * P + c) * inverse
    shift = tl.load(beta + s * P + c) - mean * scale
    return scale, shift, mean, inverse


@triton.jit
def gather(
    images, index, shift, flip, counts, step, out, steps,
    B: tl.constexpr, H: tl.constexpr, W: tl.constexpr, PAD: tl.constexpr, AUGMENT: tl.constexpr,
    M0: tl.constexpr, M1: tl.constexpr, M2: tl.constexpr, S0: tl.constexpr, S1: tl.constexpr, S2: tl.constexpr,
    PIXELS: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Crop, flip and normalise one image: uint8 [N, H, W, 3] to [S, B, H, W, 4], the last channel zero."""
    s = tl.program_id(1).to(tl.int64)
    b = tl.program_id(0)
    t = tl.load(step)
    valid = b < _count(counts, step, steps, s)
    place = (s * steps + t) * B + b
    image = tl.load(index + place)
    p = tl.arange(0, PIXELS)
    h = p // W
    w = p % W
    inside = (p < H * W) & valid
    if AUGMENT:
        mirrored = tl.load(flip + place) != 0
        w = tl.where(mirrored, W - 1 - w, w)
        h = h + tl.load(shift + place * 2).to(tl.int32) - PAD
        w = w + tl.load(shift + place * 2 + 1).to(tl.int32) - PAD
    real = inside & (h >= 0) & (h < H) & (w >= 0) & (w < W)
    source = images + image * (H * W * 3) + (h * W + w) * 3
    target = out + ((s * B + b) * (H * W) + p) * 4
    v0 = (tl.load(source, mask=real, other=0).to(ACC) - M0) / S0
    v1 = (tl.load(source + 1, mask=real, other=0).to(ACC) - M1) / S1
    v2 = (tl.load(source + 2, mask=real, other=0).to(ACC) - M2) / S2
    tl.store(target, v0.to(out.dtype.element_ty), mask=inside)
    tl.store(target + 1, v1.to(out.dtype.element_ty), mask=inside)
    tl.store(target + 2, v2.to(out.dtype.element_ty), mask=inside)


@triton.jit
def conv(
    x, w, y, sums, stats, gamma, beta, counts, step, steps, P, Q,
    B: tl.constexpr, H: tl.constexpr, W: tl.constexpr, XC: tl.constexpr, CIN: tl.constexpr, COUT: tl.constexpr,
    STRIDE: tl.constexpr, NORM: tl.constexpr, EVAL: tl.constexpr, EPS: tl.constexpr,
    PIXELS: tl.constexpr, KB: tl.constexpr, ACC: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """3x3 convolution with padding 1: y = w * x, or w * relu(norm(x)); adds y's sums per channel to `sums`.

    x [S, B, H, W, XC >= CIN], w [S, 9 CIN, COUT] in the order (tap, channel in, channel out).
    """
    OH: tl.constexpr = H // STRIDE
    OW: tl.constexpr = W // STRIDE
    s = tl.program_id(1).to(tl.int64)
    count = _count(counts, step, steps, s)
    p = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    b = p // (OH * OW)
    oh = (p // OW) % OH
    ow = p % OW
    valid = b < count
    co = tl.arange(0, COUT)
    x += s * (B * H * W * XC)
    acc = tl.zeros((PIXELS, COUT), dtype=ACC)
    if KB == CIN:
        # A block of the product is one tap with all channels: rows and columns are the same for all of them.
        ci = tl.arange(0, KB)
        if NORM:
            scale, shift, _, _ = _affine(stats, gamma, beta, ci, s, P, Q, (count * (H * W)).to(ACC), EVAL, EPS)
        for tap in range(9):
            ih = oh * STRIDE + tap // 3 - 1
            iw = ow * STRIDE + tap % 3 - 1
            inside = (valid & (ih >= 0) & (ih < H) & (iw >= 0) & (iw < W))[:, None]
            pixel = (b * H + ih) * W + iw
            part = tl.load(x + pixel[:, None] * XC + ci[None, :], mask=inside, other=0.0)
            if NORM:
                v = part.to(ACC) * scale[None, :] + shift[None, :]
                part = tl.where(inside, tl.maximum(v, 0.0, propagate_nan=tl.PropagateNan.ALL), 0.0).to(
                    x.dtype.element_ty
                )
            weight = tl.load(w + s * P + (tap * CIN + ci)[:, None] * COUT + co[None, :])
            acc = tl.dot(part, weight, acc, input_precision=DOT, out_dtype=ACC)
    else:
        # Several taps at once: fewer, longer products for few channels. KB is a multiple of CIN, or >= 9 CIN.
        ci = tl.arange(0, KB) % CIN
        if NORM:
            scale, shift, _, _ = _affine(stats, gamma, beta, ci, s, P, Q, (count * (H * W)).to(ACC), EVAL, EPS)
        for start in range(0, 9 * CIN, KB):
            k = start + tl.arange(0, KB)
            tap = k // CIN
            ih = oh[:, None] * STRIDE + (tap // 3)[None, :] - 1
            iw = ow[:, None] * STRIDE + (tap % 3)[None, :] - 1
            inside = valid[:, None] & (ih >= 0) & (ih < H) & (iw >= 0) & (iw < W) & (tap < 9)[None, :]
            pixel = (b[:, None] * H + ih) * W + iw
            part = tl.load(x + pixel * XC + ci[None, :], mask=inside, other=0.0)
            if NORM:
                v = part.to(ACC) * scale[None, :] + shift[None, :]
                part = tl.where(inside, tl.maximum(v, 0.0, propagate_nan=tl.PropagateNan.ALL), 0.0).to(
                    x.dtype.element_ty
                )
            weight = tl.load(w + s * P + k[:, None] * COUT + co[None, :], mask=(k < 9 * CIN)[:, None], other=0.0)
            acc = tl.dot(part, weight, acc, input_precision=DOT, out_dtype=ACC)
    rounded = acc.to(y.dtype.element_ty)
    tl.store(y + (s * (B * OH * OW) + p[:, None]) * COUT + co[None, :], rounded, mask=valid[:, None])
    if not EVAL:
        v = rounded.to(ACC)
        tl.atomic_add(sums + s * 2 * Q + co, tl.sum(v, 0), sem="relaxed")
        tl.atomic_add(sums + s * 2 * Q + Q + co, tl.sum(v * v, 0), sem="relaxed")


@triton.jit
def join(
    y, x, z, stats, gamma, beta, counts, step, steps, P, Q,
    B: tl.constexpr, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, SHORTCUT: tl.constexpr,
    EVAL: tl.constexpr, EPS: tl.constexpr, PIXELS: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """End of a block: z = relu(norm(y) + shortcut(x)); SHORTCUT 0: none, 1: x itself, 2: subsampled and padded."""
    s = tl.program_id(1).to(tl.int64)
    count = _count(counts, step, steps, s)
    p = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    b = p // (H * W)
    valid = (b < count)[:, None]
    c = tl.arange(0, C)
    here = (s * (B * H * W) + p[:, None]) * C + c[None, :]
    scale, shift, _, _ = _affine(stats, gamma, beta, c, s, P, Q, (count * (H * W)).to(ACC), EVAL, EPS)
    v = tl.load(y + here, mask=valid, other=0.0).to(ACC) * scale[None, :] + shift[None, :]
    if SHORTCUT == 1:
        v += tl.load(x + here, mask=valid, other=0.0).to(ACC)
    if SHORTCUT == 2:
        h = 2 * ((p // W) % H)
        w = 2 * (p % W)
        pixel = (s * B + b) * (4 * H * W) + h * (2 * W) + w
        old = (c >= C // 4) & (c < C // 4 + C // 2)
        source = x + pixel[:, None] * (C // 2) + (c - C // 4)[None, :]
        v += tl.load(source, mask=valid & old[None, :], other=0.0).to(ACC)
    tl.store(z + here, tl.maximum(v, 0.0, propagate_nan=tl.PropagateNan.ALL).to(z.dtype.element_ty), mask=valid)


@triton.jit
def pool(
    z, features, counts, step, steps,
    B: tl.constexpr, AREA: tl.constexpr, ROWS: tl.constexpr, C: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Mean over the pixels of one image: [S, B, AREA, C] to [S, B, C]."""
    s = tl.program_id(1).to(tl.int64)
    b = tl.program_id(0)
    p = tl.arange(0, ROWS)
    c = tl.arange(0, C)
    real = (p < AREA) & (b < _count(counts, step, steps, s))
    v = tl.load(z + ((s * B + b) * AREA + p[:, None]) * C + c[None, :], mask=real[:, None], other=0.0).to(ACC)
    tl.store(features + (s * B + b) * C + c, tl.sum(v, 0) / AREA)


@triton.jit
def head(
    features, w, bias, logits, targets, index, loss, dw, dbias, dfeatures, counts, step, steps, P, scale,
    B: tl.constexpr, C: tl.constexpr, CLASSES: tl.constexpr, WIDE: tl.constexpr, AREA: tl.constexpr,
    TRAIN: tl.constexpr, IMAGES: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Linear layer; for training also cross-entropy with probabilities [N, CLASSES], and its gradients."""
    s = tl.program_id(1).to(tl.int64)
    count = _count(counts, step, steps, s)
    b = tl.program_id(0) * IMAGES + tl.arange(0, IMAGES)
    valid = b < count
    k = tl.arange(0, C)
    c = tl.arange(0, WIDE)
    known = c < CLASSES
    v = tl.load(features + (s * B + b[:, None]) * C + k[None, :], mask=valid[:, None], other=0.0)
    # The linear layer's weight is kept as [C, CLASSES], like the convolutions'.
    weight = tl.load(w + s * P + k[:, None] * CLASSES + c[None, :], mask=known[None, :], other=0.0)
    z = tl.dot(v, weight, input_precision="ieee", out_dtype=ACC)
    z += tl.load(bias + s * P + c, mask=known, other=0.0)[None, :]
    both = valid[:, None] & known[None, :]
    if not TRAIN:
        tl.store(logits + (s * B + b[:, None]) * CLASSES + c[None, :], z, mask=both)
    if TRAIN:
        z = tl.where(known[None, :], z, float("-inf"))
        z = z - tl.max(z, 1)[:, None]
        e = tl.exp(z)
        total = tl.sum(e, 1)
        q = e / total[:, None]
        image = tl.load(index + (s * steps + tl.load(step)) * B + b, mask=valid, other=0)
        t = tl.load(targets + image[:, None] * CLASSES + c[None, :], mask=both, other=0.0)
        # -sum_c t_c log q_c; log q = z - log(total), and 0 where the class does not exist.
        log_q = tl.where(both, z - tl.log(total)[:, None], 0.0)
        each = -tl.sum(t * log_q, 1)
        size = tl.maximum(count, 1).to(ACC)
        tl.atomic_add(loss + s, tl.sum(tl.where(valid, each, 0.0), 0) / size, sem="relaxed")
        d = tl.where(both, (q * tl.sum(t, 1)[:, None] - t) * (scale / size), 0.0)
        dwt = tl.dot(tl.trans(v), d, input_precision="ieee", out_dtype=ACC)
        wide = known[None, :] & (k >= 0)[:, None]
        tl.atomic_add(dw + s * P + k[:, None] * CLASSES + c[None, :], dwt, mask=wide, sem="relaxed")
        tl.atomic_add(dbias + s * P + c, tl.sum(d, 0), mask=known, sem="relaxed")
        df = tl.dot(d, tl.trans(weight), input_precision="ieee", out_dtype=ACC) / AREA
        tl.store(dfeatures + (s * B + b[:, None]) * C + k[None, :], df, mask=valid[:, None])


@triton.jit
def spread(
    dfeatures, z, y, g, stats, gamma, beta, dgamma, dbeta, counts, step, steps, P, Q,
    B: tl.constexpr, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, EPS: tl.constexpr,
    PIXELS: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Gradient before the last ReLU: g = dfeatures where z > 0, and its sums for the last BatchNorm."""
    s = tl.program_id(1).to(tl.int64)
    count = _count(counts, step, steps, s)
    p = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    b = p // (H * W)
    valid = (b < count)[:, None]
    c = tl.arange(0, C)
    here = (s * (B * H * W) + p[:, None]) * C + c[None, :]
    _, _, mean, inverse = _affine(stats, gamma, beta, c, s, P, Q, (count * (H * W)).to(ACC), False, EPS)
    v = tl.load(dfeatures + (s * B + b[:, None]) * C + c[None, :], mask=valid, other=0.0)
    v = tl.where(tl.load(z + here, mask=valid, other=0.0) > 0, v, 0.0).to(g.dtype.element_ty)
    tl.store(g + here, v, mask=valid)
    v = v.to(ACC)
    normed = (tl.load(y + here, mask=valid, other=0.0).to(ACC) - mean[None, :]) * inverse[None, :]
    tl.atomic_add(dbeta + s * P + c, tl.sum(v, 0), sem="relaxed")
    tl.atomic_add(dgamma + s * P + c, tl.sum(tl.where(valid, v * normed, 0.0), 0), sem="relaxed")


@triton.jit
def norm_back(
    g, y, dy, stats, gamma, beta, dgamma, dbeta, counts, step, steps, P, Q,
    B: tl.constexpr, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, EPS: tl.constexpr,
    PIXELS: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """BatchNorm backward: dy = gamma / std (g - mean(g) - normed mean(g normed)), means from the sums."""
    s = tl.program_id(1).to(tl.int64)
    count = _count(counts, step, steps, s)
    p = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    valid = (p // (H * W) < count)[:, None]
    c = tl.arange(0, C)
    here = (s * (B * H * W) + p[:, None]) * C + c[None, :]
    size = (count * (H * W)).to(ACC)
    scale, _, mean, inverse = _affine(stats, gamma, beta, c, s, P, Q, size, False, EPS)
    first = tl.load(dbeta + s * P + c) / size
    second = tl.load(dgamma + s * P + c) / size
    v = tl.load(g + here, mask=valid, other=0.0).to(ACC)
    normed = (tl.load(y + here, mask=valid, other=0.0).to(ACC) - mean[None, :]) * inverse[None, :]
    v = scale[None, :] * (v - first[None, :] - normed * second[None, :])
    tl.store(dy + here, v.to(dy.dtype.element_ty), mask=valid)


@triton.jit
def conv_back(
    dy, w, g, extra, z, y, stats, gamma, beta, dgamma, dbeta, counts, step, steps, P, Q,
    B: tl.constexpr, H: tl.constexpr, W: tl.constexpr, CIN: tl.constexpr, COUT: tl.constexpr,
    STRIDE: tl.constexpr, SHORTCUT: tl.constexpr, EPS: tl.constexpr,
    PIXELS: tl.constexpr, KB: tl.constexpr, ACC: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Gradient of a convolution's input, taken through the ReLU before it; adds its sums for that BatchNorm.

    SHORTCUT -1: the input was relu(norm(y)). Otherwise it was z, the end of a block, and the gradient `extra`
    of the block's other branch is added (1: as it is; 2: through subsampling and padding).
    """
    OH: tl.constexpr = H // STRIDE
    OW: tl.constexpr = W // STRIDE
    s = tl.program_id(1).to(tl.int64)
    count = _count(counts, step, steps, s)
    p = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    b = p // (H * W)
    ih = (p // W) % H
    iw = p % W
    valid = (b < count)[:, None]
    ci = tl.arange(0, CIN)
    dy += s * (B * OH * OW * COUT)
    acc = tl.zeros((PIXELS, CIN), dtype=ACC)
    if KB == COUT:
        co = tl.arange(0, COUT)
        for tap in range(9):
            oh = ih + 1 - tap // 3
            ow = iw + 1 - tap % 3
            inside = (b < count) & (oh >= 0) & (ow >= 0)
            if STRIDE == 2:
                inside = inside & (oh % 2 == 0) & (ow % 2 == 0)
                oh = oh // 2
                ow = ow // 2
            inside = inside & (oh < OH) & (ow < OW)
            pixel = (b * OH + oh) * OW + ow
            part = tl.load(dy + pixel[:, None] * COUT + co[None, :], mask=inside[:, None], other=0.0)
            weight = tl.load(w + s * P + (tap * CIN + ci)[None, :] * COUT + co[:, None])
            acc = tl.dot(part, weight, acc, input_precision=DOT, out_dtype=ACC)
    else:
        co = tl.arange(0, KB) % COUT
        for start in range(0, 9 * COUT, KB):
            tap = (start + tl.arange(0, KB)) // COUT
            oh = ih[:, None] + 1 - (tap // 3)[None, :]
            ow = iw[:, None] + 1 - (tap % 3)[None, :]
            inside = valid & (oh >= 0) & (ow >= 0) & (tap < 9)[None, :]
            if STRIDE == 2:
                inside = inside & (oh % 2 == 0) & (ow % 2 == 0)
                oh = oh // 2
                ow = ow // 2
            inside = inside & (oh < OH) & (ow < OW)
            pixel = (b[:, None] * OH + oh) * OW + ow
            part = tl.load(dy + pixel * COUT + co[None, :], mask=inside, other=0.0)
            rows = tap[:, None] * CIN + ci[None, :]
            weight = tl.load(w + s * P + rows * COUT + co[:, None], mask=(tap < 9)[:, None], other=0.0)
            acc = tl.dot(part, weight, acc, input_precision=DOT, out_dtype=ACC)
    here = (s * (B * H * W) + p[:, None]) * CIN + ci[None, :]
    if SHORTCUT == 1:
        acc += tl.load(extra + here, mask=valid, other=0.0).to(ACC)
    if SHORTCUT == 2:
        even = valid & ((ih % 2 == 0) & (iw % 2 == 0))[:, None]
        pixel = (s * B + b) * (OH * OW) + (ih // 2) * OW + iw // 2
        source = extra + pixel[:, None] * COUT + (ci + (COUT - CIN) // 2)[None, :]
        acc += tl.load(source, mask=even, other=0.0).to(ACC)
    size = (count * (H * W)).to(ACC)
    scale, shift, mean, inverse = _affine(stats, gamma, beta, ci, s, P, Q, size, False, EPS)
    before = tl.load(y + here, mask=valid, other=0.0).to(ACC)
    if SHORTCUT == -1:
        active = before * scale[None, :] + shift[None, :] > 0
    else:
        active = tl.load(z + here, mask=valid, other=0.0) > 0
    rounded = tl.where(active & valid, acc, 0.0).to(g.dtype.element_ty)
    tl.store(g + here, rounded, mask=valid)
    v = rounded.to(ACC)
    normed = tl.where(valid, (before - mean[None, :]) * inverse[None, :], 0.0)
    tl.atomic_add(dbeta + s * P + ci, tl.sum(v, 0), sem="relaxed")
    tl.atomic_add(dgamma + s * P + ci, tl.sum(v * normed, 0), sem="relaxed")


@triton.jit
def conv_grad(
    x, dy, dw, stats, gamma, beta, counts, step, steps, P, Q,
    B: tl.constexpr, H: tl.constexpr, W: tl.constexpr, XC: tl.constexpr, CIN: tl.constexpr, COUT: tl.constexpr,
    STRIDE: tl.constexpr, NORM: tl.constexpr, EPS: tl.constexpr,
    ROWS: tl.constexpr, CHUNK: tl.constexpr, PIXELS: tl.constexpr, ACC: tl.constexpr, DOT: tl.constexpr,
):  # fmt: skip
    """Gradient of a convolution's weights, added to dw [S, 9 CIN, COUT]; a program sums a chunk of the pixels."""
    OH: tl.constexpr = H // STRIDE
    OW: tl.constexpr = W // STRIDE
    s = tl.program_id(2).to(tl.int64)
    count = _count(counts, step, steps, s)
    k = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    tap = k // CIN
    ci = k % CIN
    kh = (tap // 3)[:, None] - 1
    kw = (tap % 3)[:, None] - 1
    co = tl.arange(0, COUT)
    x += s * (B * H * W * XC)
    dy += s * (B * OH * OW * COUT)
    if NORM:
        scale, shift, _, _ = _affine(stats, gamma, beta, ci, s, P, Q, (count * (H * W)).to(ACC), False, EPS)
    acc = tl.zeros((ROWS, COUT), dtype=ACC)
    begin = tl.program_id(0) * CHUNK
    for start in range(0, CHUNK, PIXELS):
        p = begin + start + tl.arange(0, PIXELS)
        b = p // (OH * OW)
        valid = b < count
        ih = ((p // OW) % OH)[None, :] * STRIDE + kh
        iw = (p % OW)[None, :] * STRIDE + kw
        inside = valid[None, :] & (ih >= 0) & (ih < H) & (iw >= 0) & (iw < W) & (tap < 9)[:, None]
        part = tl.load(x + ((b[None, :] * H + ih) * W + iw) * XC + ci[:, None], mask=inside, other=0.0)
        if NORM:
            v = part.to(ACC) * scale[:, None] + shift[:, None]
            part = tl.where(inside, tl.maximum(v, 0.0, propagate_nan=tl.PropagateNan.ALL), 0.0).to(
                x.dtype.element_ty
            )
        d = tl.load(dy + p[:, None] * COUT + co[None, :], mask=valid[:, None], other=0.0)
        acc = tl.dot(part, d, acc, input_precision=DOT, out_dtype=ACC)
    target = dw + s * P + k[:, None] * COUT + co[None, :]
    tl.atomic_add(target, acc, mask=(k < 9 * CIN)[:, None] & (co >= 0)[None, :], sem="relaxed")


@triton.jit
def update(
    w, v, dw, compute, decay, anchor, correction, rates, counts, step, steps, P, momentum, mu,
    PULL: tl.constexpr, CORRECT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """v <- momentum v + dw + decay w + mu (w - anchor) + correction; w <- w - rate v; dw <- 0.

    Members without a batch stay as they are.
    """
    s = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = i < P
    here = s * P + i
    active = real & (_count(counts, step, steps, s) > 0)
    weight = tl.load(w + here, mask=real, other=0.0)
    g = tl.load(dw + here, mask=real, other=0.0) + tl.load(decay + i, mask=real, other=0.0) * weight
    if PULL:
        g += mu * (weight - tl.load(anchor + here, mask=real, other=0.0))
    if CORRECT:
        g += tl.load(correction + here, mask=real, other=0.0)
    speed = momentum * tl.load(v + here, mask=real, other=0.0) + g
    weight = weight - tl.load(rates + tl.load(step)) * speed
    tl.store(v + here, speed, mask=active)
    tl.store(w + here, weight, mask=active)
    tl.store(compute + here, weight.to(compute.dtype.element_ty), mask=active)
    tl.store(dw + here, tl.zeros_like(weight), mask=real)


@triton.jit
def running(
    sums, stats, area, rates, counts, step, steps, Q, BLOCK: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Move running statistics by rates[step] towards the batch's mean and unbiased variance; sums <- 0."""
    s = tl.program_id(1).to(tl.int64)
    q = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = q < Q
    count = _count(counts, step, steps, s)
    size = (tl.load(area + q, mask=real, other=1) * tl.maximum(count, 1)).to(ACC)
    here = s * 2 * Q + q
    mean = tl.load(sums + here, mask=real, other=0.0) / size
    var = tl.maximum(
        tl.load(sums + here + Q, mask=real, other=0.0) / size - mean * mean, 0.0, propagate_nan=tl.PropagateNan.ALL
    )
    var = var * size / (size - 1)
    rate = tl.load(rates + tl.load(step))
    active = real & (count > 0)
    old_mean = tl.load(stats + here, mask=real, other=0.0)
    old_var = tl.load(stats + here + Q, mask=real, other=1.0)
    tl.store(stats + here, old_mean + rate * (mean - old_mean), mask=active)
    tl.store(stats + here + Q, old_var + rate * (var - old_var), mask=active)
    tl.store(sums + here, tl.zeros_like(mean), mask=real)
    tl.store(sums + here + Q, tl.zeros_like(mean), mask=real)
