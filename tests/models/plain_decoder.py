"""A decoder in numpy and double precision: whole sequences, plain masks, no cache. It reads a GGUF of the llama, qwen3, gemma3 and
glm4moe kinds by its keys, and is an oracle for what the golden models leave out: windows of all sizes, routers, scalings."""
import gguf
import numpy as np


class Decoder:
    NEOX = {"qwen2", "qwen3", "qwen3moe", "glm4moe", "gemma3"}

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self.arch = reader.fields["general.architecture"].contents()
        self.keys = {name: field.contents() for name, field in reader.fields.items()}
        self.tensors = {t.name: gguf.dequantize(t.data, t.tensor_type).astype(np.float64) for t in reader.tensors}
        self.n_layers = self.key("block_count") - self.key("nextn_predict_layers", 0)
        self.eps = self.key("attention.layer_norm_rms_epsilon")

    def key(self, name, default=None):
        return self.keys.get(f"{self.arch}.{name}", default)

    def tensor(self, name, il=None):
        return self.tensors.get(name if il is None else f"blk.{il}.{name}")

    def norm(self, x, name, il=None):
        return rms_norm(x, self.tensor(name + ".weight", il), self.eps)

    def logits(self, tokens):
        x = self.tensor("token_embd.weight")[tokens]
        if self.arch == "gemma3":
            x = x * np.sqrt(x.shape[1])
        for il in range(self.n_layers):
            x = x + self.after(il, "post_attention_norm", self.attention(il, self.norm(x, "attn_norm", il)))
            before_ffn = "ffn_norm" if self.tensor("ffn_norm.weight", il) is not None else "post_attention_norm"
            x = x + self.after(il, "post_ffw_norm", self.feed_forward(il, self.norm(x, before_ffn, il)))
        output = self.tensor("output.weight")
        return self.norm(x, "output_norm") @ (self.tensor("token_embd.weight") if output is None else output).T

    def after(self, il, name, y):
        return self.norm(y, name, il) if self.arch == "gemma3" else y

    # ---- attention

    def project(self, il, h, name, heads):
        y = h @ self.tensor(f"attn_{name}.weight", il).T
        bias = self.tensor(f"attn_{name}.bias", il)
        y = (y if bias is None else y + bias).reshape(len(h), heads, -1)
        norm = self.tensor(f"attn_{name}_norm.weight", il)
        return y if norm is None else rms_norm(y, norm, self.eps)

    def rotate(self, il, x):
        n_rot = self.key("rope.dimension_count", x.shape[-1])
        base = self.key("rope.freq_base", 10000.0)
        if self.arch == "gemma3" and np.isfinite(self.window(il)):
            base = self.key("rope.freq_base_swa", 10000.0)
        angle = np.arange(len(x))[:, None] * base ** (-np.arange(0, n_rot, 2) / n_rot)
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        first, second = (slice(0, n_rot // 2), slice(n_rot // 2, n_rot)) if self.arch in self.NEOX else (slice(0, n_rot, 2), slice(1, n_rot, 2))
        y = x.copy()
        y[..., first] = x[..., first] * cos - x[..., second] * sin
        y[..., second] = x[..., first] * sin + x[..., second] * cos
        return y

    def attention(self, il, h):
        heads, kv_heads = self.key("attention.head_count"), self.key("attention.head_count_kv")
        q, k = self.rotate(il, self.project(il, h, "q", heads)), self.rotate(il, self.project(il, h, "k", kv_heads))
        v = self.project(il, h, "v", kv_heads)
        distance = np.arange(len(h))[:, None] - np.arange(len(h))[None]
        hidden = (distance < 0) | (distance >= self.window(il))
        out = np.empty((len(h), heads, v.shape[-1]))
        for head in range(heads):
            kv = head * kv_heads // heads
            scores = np.where(hidden, -np.inf, q[:, head] @ k[:, kv].T / np.sqrt(q.shape[-1]))
            p = np.exp(scores - scores.max(axis=1, keepdims=True))
            out[:, head] = p / p.sum(axis=1, keepdims=True) @ v[:, kv]
        return out.reshape(len(h), -1) @ self.tensor("attn_output.weight", il).T

    def window(self, il):
        size, period = self.key("attention.sliding_window", 0), self.key("attention.sliding_window_pattern", 6)
        return size if self.arch == "gemma3" and size and il % period < period - 1 else np.inf

    # ---- feed-forward

    def feed_forward(self, il, h):
        router = self.tensor("ffn_gate_inp.weight", il)
        if router is None:
            return gated(h, *(self.tensor(f"ffn_{part}.weight", il) for part in ("gate", "up", "down")), self.arch == "gemma3")
        y = self.experts(il, h, h @ router.T)
        shared = [self.tensor(f"ffn_{part}_shexp.weight", il) for part in ("gate", "up", "down")]
        return y if shared[0] is None else y + gated(h, *shared)

    def experts(self, il, h, logits):
        sigmoid = self.key("expert_gating_func", 1) == 2
        p = 1 / (1 + np.exp(-logits)) if sigmoid else np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        bias = self.tensor("exp_probs_b.bias", il)
        score = p if bias is None else p + bias
        gate, up, down = (self.tensor(f"ffn_{part}_exps.weight", il) for part in ("gate", "up", "down"))
        y = np.zeros_like(h)
        for row in range(len(h)):
            chosen = np.argsort(-score[row], kind="stable")[:self.key("expert_used_count")]
            weight = p[row, chosen]
            if self.key("expert_weights_norm", True):
                weight = weight / weight.sum()
            for w, e in zip(weight * self.key("expert_weights_scale", 1.0), chosen):
                y[row] += w * gated(h[row], gate[e], up[e], down[e])
        return y


def rms_norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight


def gated(h, gate, up, down, gelu=False):
    g = h @ gate.T
    if gelu:
        act = g / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (g + 0.044715 * g**3)))
    else:
        act = g / (1 + np.exp(-g))
    return (act * (h @ up.T)) @ down.T
