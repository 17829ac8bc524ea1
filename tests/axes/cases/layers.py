"""Products, attention, normalisations."""

import torch

from tests.axes.cases.call import b, call, r

aten = torch.ops.aten
_both = [True, True, True]

MATRIX = [
    call(aten.mm.default, r(3, 5), r(5, 7)),
    call(aten.mm.default, r(1, 5), r(5, 7)),
    call(aten.bmm.default, r(3, 5, 7), r(3, 7, 2)),
    call(aten.addmm.default, r(7), r(3, 5), r(5, 7)),
    call(aten.addmm.default, r(3, 1), r(3, 5), r(5, 7), beta=0.5, alpha=2),
    call(aten.addmm.default, r(3, 7), r(3, 5), r(5, 7), beta=0),
    call(aten.addmm.default, mat2=r(5, 7), self=r(7), mat1=r(3, 5)),
    call(aten.baddbmm.default, r(3, 1, 2), r(3, 5, 7), r(3, 7, 2)),
    call(aten.baddbmm.default, r(5, 1), r(3, 5, 7), r(3, 7, 2), beta=2),
    call(aten.linear.default, r(3, 5), r(7, 5)),
    call(aten.linear.default, r(2, 3, 5), r(7, 5), r(7)),
    call(aten.linear.default, r(2, 3, 4, 5), r(7, 5), bias=r(7)),
    call(aten.linear.default, r(5), r(7, 5), r(7)),
    call(aten.matmul.default, r(5), r(5)),
    call(aten.matmul.default, r(3, 5), r(5)),
    call(aten.matmul.default, r(5), r(5, 7)),
    call(aten.matmul.default, r(5), r(3, 5, 7)),
    call(aten.matmul.default, r(2, 3, 5), r(5)),
    call(aten.matmul.default, r(2, 3, 5), r(5, 7)),
    call(aten.matmul.default, r(3, 5), r(2, 5, 7)),
    call(aten.matmul.default, r(2, 3, 4, 5), r(2, 3, 5, 7)),
    call(aten.matmul.default, r(2, 1, 4, 5), r(3, 5, 7)),
    call(aten.matmul.default, r(3, 4, 5), r(2, 3, 5, 7)),
    call(aten.dot.default, r(5), r(5)),
    call(aten.vdot.default, torch.complex(r(5), r(5)), torch.complex(r(5), r(5))),
    call(aten.mv.default, r(3, 5), r(5)),
    call(aten.addmv.default, r(3), r(3, 5), r(5)),
    call(aten.addmv.default, r(1), r(3, 5), r(5), beta=0.5),
]

_q, _k, _v = r(2, 3, 5, 8), r(2, 3, 7, 8), r(2, 3, 7, 8)
_far = torch.zeros(5, 7).masked_fill(~b(5, 7), -1e9)
_flash = aten._scaled_dot_product_flash_attention_for_cpu.default
_seen, _each = _flash(_q, _k, _v), _flash(_q, _q, _q, 0.0, True)
ATTENTION = [
    call(aten.scaled_dot_product_attention.default, _q, _k, _v),
    call(aten.scaled_dot_product_attention.default, r(1, 3, 5, 8), r(1, 3, 7, 8), r(1, 3, 7, 8), scale=0.5),
    call(aten.scaled_dot_product_attention.default, r(3, 5, 8), r(3, 7, 8), r(3, 7, 8)),
    call(aten.scaled_dot_product_attention.default, _q, _k, _v, _far),
    call(aten.scaled_dot_product_attention.default, _q, _k, _v, attn_mask=r(2, 1, 5, 7)),
    call(aten.scaled_dot_product_attention.default, _q, _k, _v, attn_mask=r(2, 3, 1, 7)),
    call(aten.scaled_dot_product_attention.default, _q, _k, _v, attn_mask=r(3, 5, 7)),
    call(aten.scaled_dot_product_attention.default, _q, _k, _v, attn_mask=torch.ones(5, 7, dtype=torch.bool).tril(1)),
    call(aten.scaled_dot_product_attention.default, r(2, 3, 7, 8), _k, _v, is_causal=True),
    call(aten.scaled_dot_product_attention.default, _q, _k, _v, None, 0.0, True, scale=0.5),
    call(aten.scaled_dot_product_attention.default, r(2, 3, 9, 8), _k, _v, None, 0.0, True),
    call(aten.scaled_dot_product_attention.default, r(2, 6, 5, 8), _k, _v, enable_gqa=True),
    call(aten.scaled_dot_product_attention.default, r(2, 6, 7, 8), _k, _v, is_causal=True, enable_gqa=True),
    call(aten.scaled_dot_product_attention.default, r(2, 6, 5, 8), _k, _v, attn_mask=r(2, 6, 5, 7), enable_gqa=True),
    call(aten._scaled_dot_product_attention_math.default, _q, _k, _v),
    call(aten._scaled_dot_product_attention_math.default, _q, _k, _v, r(2, 1, 5, 7)),
    call(aten._scaled_dot_product_attention_math.default, _q, _k, _v, is_causal=True),
    call(_flash, _q, _k, _v),
    call(_flash, _q, _k, _v, attn_mask=_far),
    call(_flash, _q, _k, _v, attn_mask=r(2, 3, 5, 7), scale=0.5),
    call(_flash, _q, _q, _q, 0.0, True),
    call(aten._scaled_dot_product_flash_attention_for_cpu_backward.default, r(2, 3, 5, 8), _q, _k, _v, *_seen, 0.0, False),
    call(aten._scaled_dot_product_flash_attention_for_cpu_backward.default, r(2, 3, 5, 8), _q, _q, _q, *_each, 0.0, True),
]

_rows, _images = r(2, 3, 5), r(3, 6, 4, 5)
_normal = aten.native_layer_norm.default(_rows, [5], None, None, 1e-5)
_grouped = aten.native_group_norm.default(_images, None, None, 3, 6, 20, 2, 1e-5)
_batch = aten._native_batch_norm_legit.no_stats(_images, None, None, True, 0.1, 1e-5)
_four = (r(6), r(6), r(6), r(6).abs())
NORMS = [
    call(aten.native_layer_norm.default, r(2, 3, 5), [5], r(5), r(5), 1e-5),
    call(aten.native_layer_norm.default, r(2, 3, 5), [3, 5], None, None, 1e-5),
    call(aten.native_layer_norm.default, r(2, 3, 5), [5], None, r(5), 1e-5),
    call(aten.layer_norm.default, r(2, 3, 5), [5], bias=r(5), weight=r(5)),
    call(aten.rms_norm.default, r(2, 3, 5), [5], r(5), 1e-6),
    call(aten._fused_rms_norm.default, r(2, 3, 5), [5], r(5), 1e-6),
    call(aten.native_layer_norm_backward.default, r(2, 3, 5), _rows, [5], *_normal[1:], r(5), r(5), [True, True, True]),
    call(aten.native_layer_norm_backward.default, r(2, 3, 5), _rows, [5], *_normal[1:], None, None, [True, False, False]),
    call(aten.native_group_norm.default, r(3, 6, 4, 5), r(6), r(6), 3, 6, 20, 2, 1e-5),
    call(aten.native_group_norm.default, r(1, 6, 5), None, None, 1, 6, 5, 3, 1e-5),
    call(aten.group_norm.default, r(3, 6, 4), 2, r(6), r(6)),
    call(aten.group_norm.default, r(3, 6, 4), 3),
    call(aten.native_group_norm_backward.default, r(3, 6, 4, 5), _images, *_grouped[1:], r(6), 3, 6, 20, 2, _both),
    call(aten._native_batch_norm_legit_no_training.default, _images, *_four, 0.1, 1e-5),
    call(aten._native_batch_norm_legit_no_training.default, r(3, 6), None, None, *_four[2:], 0.1, 1e-5),
    call(aten._batch_norm_no_update.default, _images, *_four, 0.1, 1e-5),
    call(aten.native_batch_norm.default, _images, *_four, False, 0.1, 1e-5),
    call(aten.native_batch_norm.default, _images, None, None, r(6), r(6).abs(), True, 0.1, 1e-5),
    call(aten.batch_norm.default, _images, *_four, False, 0.1, 1e-5, False),
    call(aten._native_batch_norm_legit.no_stats, _images, r(6), r(6), True, 0.1, 1e-5),
    call(aten._native_batch_norm_legit_functional.default, _images, *_four, True, 0.1, 1e-5),
    call(aten._batch_norm_with_update_functional.default, _images, *_four, 0.1, 1e-5),
    call(aten.native_batch_norm_backward.default, r(3, 6, 4, 5), _images, r(6), None, None, *_batch[1:], True, 1e-5, _both),
]
