"""Tiny settings of the recurrent models, single layers of attention, and the models of images and sound."""

from __future__ import annotations

VIT = {"layers": 2, "width": 32, "heads": 4, "hidden": 48, "patch": 8, "image": 24, "classes": 11}
MIXER = {"layers": 2, "width": 32, "patch": 8, "image": 24, "classes": 11}
CONVMIXER = {"width": 16, "layers": 2, "kernel": 5, "patch": 4, "image": 24, "classes": 11}
CONFORMER = {"width": 32, "layers": 2, "heads": 4, "kernel": 6, "features": 10}
TRANSDUCER = CONFORMER | {"vocab": 31, "hidden": 24, "joint": 20}
LANGUAGE = {"vocab": 97, "width": 24, "layers": 2}
FRAMES = {"hidden": 12, "features": 9, "classes": 7}
ONE_VECTOR = {"vocab": 97, "rank": 12, "hidden": 24, "maxout": 10}
TRANSLATOR = {"vocab": 97, "width": 20, "hidden": 24, "reader": 16, "maxout": 10}
ONE_WIDTH = TRANSLATOR | {"reader": 12}
MACHINE = {"hidden": 20, "rows": 8, "cells": 6}
PIXELS = {"layers": 2, "hidden": 12, "readout": 15}

TINY: dict[str, dict[str, int]] = {
    **{
        f"self_attention:{name}": {"width": 32, "d_k": 8, "d_v": 12}
        for name in ("self_attention", "masked_self_attention")
    },
    "self_attention:multi_head_attention": {"width": 32, "heads": 4, "head_dim": 8},
    "self_attention:masked_multi_head_attention": {"width": 32, "heads": 4, "head_dim": 8},
    "self_attention:wide_multi_head_attention": {"width": 16, "heads": 4, "head_dim": 16},
    **{f"vit:vit_{size}": VIT for size in ("b16", "b32", "l16", "l32", "h14")},
    **{f"mixer:mixer_{size}": MIXER for size in ("s16", "s32", "b16", "b32", "l16", "l32", "h14")},
    **{f"convmixer:convmixer_{size}": CONVMIXER for size in ("1536_20", "1024_20", "768_32")},
    **{f"conformer:conformer_{size}": CONFORMER for size in "lms"},
    **{f"conformer:conformer_transducer_{size}": TRANSDUCER for size in "lms"},
    **{f"rnn_lm:{name}": LANGUAGE for name in ("lstm_lm_small", "lstm_lm_medium", "lstm_lm_large", "gru_lm", "rnn_lm")},
    **{
        f"deep_rnn:ctc_{size}": FRAMES | {"layers": int(size[0])}
        for size in ("1l_250h", "1l_622h", "2l_250h", "3l_250h", "3l_421h_uni", "3l_500h_tanh")
    },
    "deep_rnn:ctc_5l_250h": FRAMES | {"layers": 2},
    "rnn_encoder_decoder:cho_2014": ONE_VECTOR,
    "rnn_encoder_decoder:sutskever_2014": {"source_vocab": 97, "vocab": 97, "width": 24, "layers": 2},
    **{f"seq2seq_attention:{name}": TRANSLATOR for name in ("seq2seq", "seq2seq_location", "seq2seq_general")},
    **{f"seq2seq_attention:seq2seq_{name}": ONE_WIDTH for name in ("cosine", "dot", "scaled_dot")},
    "ntm:ntm_copy": MACHINE | {"heads": 2},
    **{f"ntm:ntm_{task}": MACHINE for task in ("repeat_copy", "recall", "ngrams")},
    "show_attend_tell:show_attend_tell": {"vocab": 97, "width": 16, "hidden": 20, "image": 32, "channels": 4},
    "wavenet:wavenet": {"levels": 64, "width": 16, "gate": 12, "skip": 20, "stacks": 2, "depth": 3},
    "bytenet:bytenet": {"source_vocab": 97, "vocab": 97, "inner": 12, "sets": 2, "depth": 2},
    "bytenet:bytenet_lm": {"vocab": 97, "inner": 12, "sets": 2, "depth": 2},
    "pixel_rnn:pixel_rnn_cifar": PIXELS | {"levels": 8},
    "pixel_rnn:pixel_rnn_imagenet": PIXELS | {"levels": 8},
    "pixel_rnn:pixel_rnn_mnist": PIXELS,
}
