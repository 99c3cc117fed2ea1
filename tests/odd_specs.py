"""Specs of what is rare in the zoo: inputs that want no gradient, gradients that stop, results that nobody reads, loops
of every kind, shared blocks, raw weights, experts, recurrences, losses, two graphs of one set of weights."""

ODD = {
    "a given input": "model m(x: [batch, time, 8]) { return x -> linear(16) -> relu -> linear(4) }",
    "a gradient that stops": """
        model m(x: [batch, time, 8]) {
          a = x -> linear(8) as a
          b = a -> stop_gradient -> linear(8) as b
          return b + (a -> linear(8) as c)
        }""",
    "only behind a stop": """
        model m(x: [batch, time, 8]) {
          a = x -> linear(8) as a
          return a -> stop_gradient -> linear(8) as b
        }""",
    "the type alone": "model m(x: [batch, time, 8]) { return x -> linear(8) as a -> linear(8) as b -> cast_like(x) }",
    "whole numbers": """
        model m(x: [batch, time, 8]) {
          y = x -> linear(8) as a
          return (y -> linear(4) as b -> argmax -> embedding(4, 8)) -> linear(8) as c
        }""",
    "shared": """
        model m(width = 8)(x: [batch, time, width]) {
          let f = shared(mlp(hidden: 16))
          for i in 3 { x += x -> f }
          x += x -> f
        }""",
    "tied": """
        model m(width = 8)(tokens: token[batch, time]) {
          let words = shared(embedding(32, width))
          return tokens -> words -> layernorm -> unembed(words)
        }""",
    "a scan from zeros": """
        model m(width = 8)(x: [batch, time, width]) {
          y = scan h: [batch, width] = 0 for x_t in x {
            h = tanh((x_t -> linear(width) as input) + (h -> linear(width) as state))
            emit h
          }
          return y
        }""",
    "a scan whose last state counts": """
        model m(width = 8)(x: [batch, 5, width]) {
          h0 = x[:, 0]
          y = scan h: [batch, width] = h0, c: [batch, width] = 0 for x_t in x {
            c = h -> linear(width) as cell
            h = tanh((x_t -> linear(width) as input) + c)
            emit c
          }
          return y
        }""",
    "a weight that the loop reads": """
        model m(width = 8)(x: [batch, time, width]) {
          param w: [width, width] = xavier
          for i in 3 { x += einsum("b t i, i o -> b t o", x, w) }
        }""",
    "collected": """
        block a(x: [..., width]) { x += x -> linear(width) }
        model m(width = 8)(x: [batch, time, width]) {
          skips = for layer in 3 * a {
            x = x -> layer
            emit x
          }
          return skips[0] + skips[1]
        }""",
    "training": """
        model m(width = 8)(x: [batch, time, width]) {
          if training { x = x -> linear(width) -> linear(width) as noisy } else { x = x -> linear(width) as quiet }
        }""",
    "a loss": """
        model m(width = 8)(x: [batch, time, width]) {
          h = x -> linear(width) as a
          loss size = h -> linear(2) as aside -> square -> mean(axis: [0, 1, 2])
          return x -> linear(width) as b
        }""",
    "experts": """
        model m(width = 16)(x: [batch, time, width]) {
          for layer in 2 * moe(experts: 4, top_k: 2, expert: mlp(hidden: 32), shared: swiglu(hidden: 16)) {
            x += x -> layer
          }
        }""",
    "convolutions": """
        model m(x: [batch, time, 8]) {
          x = x -> conv1d(8, kernel: 3, padding: causal, groups: 8) -> conv1d(12, kernel: 3, stride: 2, padding: 1)
          return x -> conv_transpose1d(4, kernel: 4, stride: 2, groups: 2)
        }""",
    "images": """
        model m(x: [batch, 3, 8, 6]) {
          return x -> conv2d(6, kernel: 2, stride: 2) -> conv2d(4, kernel: [3, 1], padding: [1, 0], groups: 2)
                   -> conv_transpose2d(2, kernel: 3, stride: 2)
        }""",
    "recurrent layers": """
        model m(width = 8)(x: [batch, time, width], h: [batch, width]) {
          x = x -> rnn(width) as a -> gru(width, reverse: true) as b -> lstm(width, bias: false) as c
          return gru(width)(x, h -> linear(width) as d) as e -> linear(3) as f
        }""",
    "recurrent cells": """
        model m(width = 8)(x: [batch, width], h: [batch, width]) {
          return gru_cell(width)(x, rnn_cell(width)(x, h))
        }""",
    "linear attention": """
        model m(x: [batch, time, 8]) {
          q = x -> linear(8) as q -> split_heads(2)
          k = x -> linear(8) as k -> split_heads(2)
          a = linear_attention(q, k, k, normalize: true)
          b = linear_attention(q, a, k, log_decay: log_sigmoid(x -> linear(2) as g -> transpose(1, 2)))
          return linear_attention(b, q, q, causal: false) -> merge_heads
        }""",
    "products": """
        model m(x: [batch, time, 8]) {
          param w: [8, 6] = xavier
          param v: [6] = xavier
          param one: [4, 1] = xavier
          a = einsum("b t i, i o, o -> b t", x, w, v)
          b = einsum("b t i, b s i, b s j -> b t j", x, x, x)
          c = einsum("b t k, o k -> b t o", x -> linear(1), one)
          return einsum("b t, b t i -> b t i", a, b) + (c -> linear(8)) + matmul(matmul(x, transpose(x, 1, 2)), x)
        }""",
    "grouped queries, a sink and a cap": """
        model m(x: [batch, time, 16]) {
          param s: [4] = zeros
          q = x -> linear(16) as q -> split_heads(4)
          k = x -> linear(8) as k -> split_heads(2)
          y = sdpa(q, k, k, mask: causal & window(3), softcap: 20, sink: s)
          return y -> merge_heads -> linear(16) as out
        }""",
    "Transformer-XL": """
        block layer { attention: mha(heads: 2) position: transformer_xl ffn: mlp(hidden: 8) }
        model m { vocab: 32 context: 16 width: 8 blocks: 2 * layer head: lm }""",
    "a selective scan": """
        model m(x: [batch, time, 4]) {
          param a: [4, 3] = zeros
          b = x -> linear(3) as b
          return selective_scan(x, softplus(x -> linear(4) as d), -exp(a), b, b)
        }""",
    "two applications a turn": """
        model m(width = 8)(x: [batch, time, width]) {
          for i in 3 {
            x += x -> linear(width)
            x += x -> layernorm -> linear(width) as second
          }
        }""",
    "alternating bodies": """
        block a(x: [..., width]) { x += x -> linear(width) }
        block b(x: [..., width]) { x += x -> layernorm -> linear(width, bias: false) }
        model m(width = 8)(x: [batch, time, width]) { for layer in 2 * (a + b) + a { x = x -> layer } }""",
    "raw weights in a loop": """
        model m(width = 8)(x: [batch, time, width]) {
          for i in 2 {
            param gain: [width] = ones
            x = x * gain
          }
        }""",
    "a let of each turn": """
        model m(width = 8)(x: [batch, time, width]) {
          for i in 3 {
            let wide = width * 2 ** i
            x = x -> linear(wide) -> linear(width)
          }
        }""",
    "a size named in each turn": """
        model m(width = 8)(x: [batch, time, width]) {
          for i in 3 {
            y = x -> linear(width * 2 ** i) : [batch, time, wide]
            x = y -> linear(wide) -> linear(width)
          }
        }""",
    "a part of a scan that is prepared": """
        block unit(hidden)(h: [batch, hidden], fixed: [batch, hidden]) -> [batch, hidden] {
          return (h -> linear(hidden) as a) + (fixed -> linear(hidden) as b)
        }
        model m(width = 8)(x: [batch, time, width], fixed: [batch, width]) {
          y = scan h: [batch, width] = 0 for x_t in x {
            h = unit(hidden: width)(x_t + h, fixed)
            emit h
          }
          return y
        }""",
    "shared in a repeated block": """
        block twice(x: [..., width]) {
          let f = shared(mlp(hidden: 16))
          x += x -> f
          x += x -> f
        }
        model m(width = 8)(x: [batch, time, width]) { for layer in 2 * twice { x = x -> layer } }""",
    "comprehension": """
        block a(hidden)(x: [..., width]) { x += x -> mlp(hidden: hidden) }
        model m(width = 8)(x: [batch, time, width]) {
          for layer in [a(hidden: 8 * (i + 1)) for i in 3] { x = x -> layer as blocks }
        }""",
    "recurrences and buffers": """
        model m(width = 8)(x: [batch, time, width]) {
          x = x -> gru(width) as a -> lstm(width) as b -> batchnorm -> conv1d(width, kernel: 3, padding: causal)
          return x -> bidirectional(gru(width // 2))
        }""",
    "a table a layer": """
        block layer { attention: mha(heads: 2) position: relative_bias(buckets: 8, max_distance: 16) ffn: mlp(hidden: 8)
        } model m { vocab: 32 context: 16 width: 8 blocks: 2 * layer head: lm(tied: true) position: learned }""",
    "one table for all": """
        let bias = shared(relative_bias(buckets: 8, max_distance: 16))
        block layer { attention: mha(heads: 2) position: bias ffn: mlp(hidden: 8) }
        model m { vocab: 32 context: 16 width: 8 blocks: 2 * layer head: lm }""",
}  # fmt: skip
