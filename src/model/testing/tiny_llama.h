// For tests: a random-weight llama model file of a chosen shape, with a byte-level vocabulary that
// a tokenizer can load.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "model/testing/gguf_writer.h"

namespace kvasir::testing {

struct TinyLlama {
  int layers = 2, hidden = 64, ff = 96, heads = 4, kv_heads = 2, k_dim = 16, v_dim = 16,
      vocab = 300, context = 512;
  WeightType type = WeightType::kF32;    // of matrices
  WeightType v_type = WeightType::kF32;  // of attn_v and ffn_up: another type than the rest means
                                         // they are not stacked
  bool tied = false, biases = false;
  uint64_t seed = 1;
};

// The GPT-2 spelling of bytes as visible characters (as in every byte-level BPE vocabulary), in
// UTF-8.
inline std::vector<std::string> ByteVocabulary(int size) {
  std::vector<std::string> tokens;
  int spare = 256;
  for (int b = 0; b < 256; ++b) {
    const bool visible = (b >= 33 && b < 127) || (b >= 161 && b < 173) || b >= 174;
    const int code = visible ? b : spare++;
    tokens.push_back(code < 128 ? std::string(1, static_cast<char>(code))
                                : std::string{static_cast<char>(0xC0 | (code >> 6)),
                                              static_cast<char>(0x80 | (code & 63))});
  }
  for (int i = 256; i < size; ++i) tokens.push_back("<|extra" + std::to_string(i) + "|>");
  tokens.resize(static_cast<size_t>(size));
  return tokens;
}

inline void AddTinyTokenizer(GgufWriter& w, int vocab) {
  w.String("tokenizer.ggml.model", "gpt2");
  w.String("tokenizer.ggml.pre", "gpt-2");
  w.Strings("tokenizer.ggml.tokens", ByteVocabulary(vocab));
  std::vector<int32_t> kinds(static_cast<size_t>(vocab), 3);  // 1 normal, 3 control
  for (int i = 0; i < vocab && i < 256; ++i) kinds[static_cast<size_t>(i)] = 1;
  w.Numbers("tokenizer.ggml.token_type", 5, kinds);
  w.Strings("tokenizer.ggml.merges", {});
  w.U32("tokenizer.ggml.bos_token_id", static_cast<uint32_t>(vocab - 2));
  w.U32("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(vocab - 1));
}

inline GgufWriter MakeTinyLlama(const TinyLlama& m) {
  GgufWriter w;
  Rng rng(m.seed);
  const auto u32 = [&](const char* key, int value) {
    w.U32(std::string("llama.") + key, static_cast<uint32_t>(value));
  };
  w.String("general.architecture", "llama");
  w.String("general.name", "tiny");
  u32("context_length", m.context);
  u32("block_count", m.layers);
  u32("embedding_length", m.hidden);
  u32("feed_forward_length", m.ff);
  u32("attention.head_count", m.heads);
  u32("attention.head_count_kv", m.kv_heads);
  u32("attention.key_length", m.k_dim);
  u32("attention.value_length", m.v_dim);
  u32("rope.dimension_count", m.k_dim);
  w.F32("llama.rope.freq_base", 10000.0F);
  w.F32("llama.attention.layer_norm_rms_epsilon", 1e-5F);
  AddTinyTokenizer(w, m.vocab);
  const auto matrix = [&](const std::string& name, int in, int out, WeightType type, double gain) {
    w.RandomTensor(name, {in, out}, type, gain / std::sqrt(in), rng);
  };
  const auto vector = [&](const std::string& name, int n, float base) {
    std::string data;
    for (int i = 0; i < n; ++i)
      GgufWriter::Put(data, base + static_cast<float>(rng.Uniform() - 0.5));
    w.Tensor(name, {n}, 0, std::move(data));
  };
  w.RandomTensor("token_embd.weight", {m.hidden, m.vocab}, m.type, 1.0, rng);
  vector("output_norm.weight", m.hidden, 1.0F);
  if (!m.tied) matrix("output.weight", m.hidden, m.vocab, m.type, 2.0);
  for (int layer = 0; layer < m.layers; ++layer) {
    const std::string p = "blk." + std::to_string(layer) + ".";
    vector(p + "attn_norm.weight", m.hidden, 1.0F);
    matrix(p + "attn_q.weight", m.hidden, m.heads * m.k_dim, m.type, 1.5);
    matrix(p + "attn_k.weight", m.hidden, m.kv_heads * m.k_dim, m.type, 1.5);
    matrix(p + "attn_v.weight", m.hidden, m.kv_heads * m.v_dim, m.v_type, 1.5);
    matrix(p + "attn_output.weight", m.heads * m.v_dim, m.hidden, m.type, 1.5);
    vector(p + "ffn_norm.weight", m.hidden, 1.0F);
    matrix(p + "ffn_gate.weight", m.hidden, m.ff, m.type, 1.5);
    matrix(p + "ffn_up.weight", m.hidden, m.ff, m.v_type, 1.5);
    matrix(p + "ffn_down.weight", m.ff, m.hidden, m.type, 1.5);
    if (!m.biases) continue;
    vector(p + "attn_q.bias", m.heads * m.k_dim, 0.0F);
    vector(p + "attn_k.bias", m.kv_heads * m.k_dim, 0.0F);
    vector(p + "attn_v.bias", m.kv_heads * m.v_dim, 0.0F);
    vector(p + "attn_output.bias", m.hidden, 0.0F);
  }
  if (m.biases) vector("output.bias", m.vocab, 0.0F);
  return w;
}

}  // namespace kvasir::testing
