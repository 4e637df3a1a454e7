#include "model/llama_config.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "model/config_reader.h"
#include "model/gguf_text.h"
#include "model/tensor_table.h"

namespace kvasir::internal {
namespace {

// Numbers of the network: everything but RoPE scaling and the vocabulary.
void ReadShape(ConfigReader& reader, ModelConfig& config) {
  config.layers = reader.Int("block_count", 1, kMaxLayers);
  config.context = reader.Int("context_length", 1, kMaxContext);
  config.hidden = reader.Int("embedding_length", 1, kMaxHidden);
  config.heads = reader.PerLayerOr("attention.head_count", 1, kMaxHeads, config.layers, 0);
  if (reader.ok() && config.heads == 0) {
    reader.Fail(DataLoss(
        reader.file().Complaint(reader.Key("attention.head_count"), "the key is missing")));
  }
  if (!reader.ok()) return;
  config.ff = reader.PerLayerOr("feed_forward_length", 1, kMaxFf, config.layers, 0);
  if (reader.ok() && config.ff == 0) {
    reader.Fail(
        DataLoss(reader.file().Complaint(reader.Key("feed_forward_length"), "the key is missing")));
  }
  config.kv_heads =
      reader.PerLayerOr("attention.head_count_kv", 1, kMaxHeads, config.layers, config.heads);
  const auto head_dim_due = [&](const char* key) {
    if (reader.ok() && reader.file().Find(reader.Key(key)) == nullptr &&
        config.hidden % config.heads != 0) {
      reader.Fail(DataLoss(reader.file().Complaint(
          reader.Key(key), "missing, and embedding_length " + std::to_string(config.hidden) +
                               " is no multiple of head_count " + std::to_string(config.heads))));
    }
    const int64_t per_head = config.hidden / config.heads;
    return reader.IntOr(key, 1, kMaxHeadDim, static_cast<int>(per_head));
  };
  config.k_dim = head_dim_due("attention.key_length");
  config.v_dim = head_dim_due("attention.value_length");
  config.rope_dims = reader.IntOr("rope.dimension_count", 2, kMaxHeadDim, config.k_dim);
  config.rope_base = reader.FloatOr("rope.freq_base", 10000.0);
  config.rms_eps = static_cast<float>(reader.FloatOr("attention.layer_norm_rms_epsilon", 1e-5));
}

void CheckShape(ConfigReader& reader, const ModelConfig& config) {
  if (!reader.ok()) return;
  const auto complain = [&](const char* key, const std::string& what) {
    reader.Fail(DataLoss(reader.file().Complaint(reader.Key(key), what)));
  };
  if (config.kv_heads > config.heads || config.heads % config.kv_heads != 0) {
    complain("attention.head_count_kv", std::to_string(config.kv_heads) +
                                            " does not divide head_count " +
                                            std::to_string(config.heads));
  }
  // Also catches hidden / heads of a file without key_length.
  if (config.k_dim < 1 || config.k_dim > kMaxHeadDim || config.v_dim < 1 ||
      config.v_dim > kMaxHeadDim) {
    complain("attention.key_length", std::to_string(config.k_dim) + " and " +
                                         std::to_string(config.v_dim) + " per head (limit 1 to " +
                                         std::to_string(kMaxHeadDim) + ")");
  }
  if (config.rope_dims % 2 != 0 || config.rope_dims > config.k_dim) {
    complain("rope.dimension_count", std::to_string(config.rope_dims) +
                                         " (limit: even, at most key_length " +
                                         std::to_string(config.k_dim) + ")");
  }
  if (!(config.rope_base > 1.0) || config.rope_base > 1e12) {
    complain("rope.freq_base", std::to_string(config.rope_base) + " (limit above 1, up to 1e12)");
  }
  if (!(config.rms_eps >= 0.0F) || config.rms_eps > 1.0F) {
    complain("attention.layer_norm_rms_epsilon",
             std::to_string(config.rms_eps) + " (limit 0 to 1)");
  }
}

void RefuseOtherArithmetic(ConfigReader& reader, const ModelConfig& config) {
  reader.RefuseUnlessNeutral("expert_count", 0, "a mixture of experts");
  reader.RefuseUnlessNeutral("attention.causal", 1, "attention that is not causal");
  reader.RefuseUnlessNeutral("attention.scale", 0, "an attention scale of its own");
  reader.RefuseUnlessNeutral("attention.clamp_kqv", 0, "clamping of Q, K and V");
  reader.RefuseUnlessNeutral("attention.max_alibi_bias", 0, "ALiBi");
  reader.RefuseUnlessNeutral("attn_logit_softcapping", 0, "soft-capping");
  reader.RefuseUnlessNeutral("final_logit_softcapping", 0, "soft-capping");
  reader.RefuseUnlessNeutral("logit_scale", 1, "a logit scale");
  reader.RefuseUnlessNeutral("embedding_scale", 1, "an embedding scale");
  reader.RefuseUnlessNeutral("residual_scale", 1, "a residual scale");
  reader.RefuseUnlessNeutral("rope.scaling.attn_factor", 1, "an attention factor of RoPE scaling");
  reader.RefuseUnlessNeutral("use_parallel_residual", 0, "a parallel residual");
  const int window = reader.IntOr("attention.sliding_window", 0, kMaxContext, 0);
  if (reader.ok() && window > 0 && window < config.context) {
    reader.Fail(Unimplemented(
        reader.file().Complaint(reader.Key("attention.sliding_window"),
                                "a sliding window is not served for this architecture")));
  }
}

// Llama 3.1's rule: pairs that turn fast keep their step, slow ones are divided by `factor`, and
// those between are mixed (Hugging Face transformers, modeling_rope_utils: rope type "llama3").
std::vector<float> Llama3Divisors(const ModelConfig& config, double factor, double low, double high,
                                  double original) {
  std::vector<float> divisors;
  for (int i = 0; i < config.rope_dims / 2; ++i) {
    const double step = std::pow(config.rope_base, -2.0 * i / config.rope_dims);
    const double wavelength = 2 * std::numbers::pi / step;
    double divisor = 1;
    if (wavelength > original / low) {
      divisor = factor;
    } else if (wavelength > original / high) {
      const double smooth = (original / wavelength - low) / (high - low);
      divisor = 1 / ((1 - smooth) / factor + smooth);
    }
    divisors.push_back(static_cast<float>(divisor));
  }
  return divisors;
}

void ReadDivisors(ConfigReader& reader, const GgufTensor& tensor, ModelConfig& config) {
  const GgufFile& file = reader.file();
  if (tensor.columns() != config.rope_dims / 2 || tensor.rows() != 1) {
    return reader.Fail(DataLoss(
        file.Complaint(tensor.name, std::to_string(tensor.columns()) + " numbers where " +
                                        std::to_string(config.rope_dims / 2) + " are due")));
  }
  const WeightTypeInfo& type = GetWeightType(tensor.type);
  if (type.block_elements != 1) {
    return reader.Fail(Unimplemented(
        file.Complaint(tensor.name, std::string("is ") + type.name + " where F32 is due")));
  }
  config.rope_divisors.resize(static_cast<size_t>(tensor.columns()));
  DequantizeRow(tensor.type, tensor.data, config.rope_divisors);
  for (const float divisor : config.rope_divisors) {
    if (!std::isfinite(divisor) || divisor <= 0) {
      return reader.Fail(
          DataLoss(file.Complaint(tensor.name, "a divisor is not a positive finite number")));
    }
  }
}

void ReadRopeScaling(ConfigReader& reader, ModelConfig& config) {
  const std::string type = reader.StringOr("rope.scaling.type", "");
  // Older files have rope.scale_linear and no type.
  const double factor =
      reader.FloatOr("rope.scaling.factor", reader.FloatOr("rope.scale_linear", 1.0));
  if (!reader.ok()) return;
  const GgufFile& file = reader.file();
  if (!(factor >= 1e-3 && factor <= 1e6)) {
    return reader.Fail(
        DataLoss(file.Complaint(reader.Key("rope.scaling.factor"),
                                std::to_string(factor) + " (limit 0.001 to 1,000,000)")));
  }
  const GgufTensor* tensor = file.FindTensor("rope_freqs.weight");
  const bool known = type.empty() || type == "none" || type == "linear" || type == "llama3";
  if (!known) {
    return reader.Fail(Unimplemented(
        file.Complaint(reader.Key("rope.scaling.type"),
                       "'" + Printable(type) + "' is not served (served: none, linear, llama3)")));
  }
  if (type == "linear" || (type.empty() && factor != 1.0)) {
    config.rope_scaling = RopeScaling::kLinear;
    config.rope_factor = factor;
  }
  if (tensor != nullptr) {
    // Converters of Llama 3.1 and later write the divisors as a tensor, and the type as "llama3",
    // "linear" or nothing.
    config.rope_scaling = config.rope_factor == 1.0 ? RopeScaling::kLlama3 : config.rope_scaling;
    return ReadDivisors(reader, *tensor, config);
  }
  if (type != "llama3") return;
  config.rope_scaling = RopeScaling::kLlama3;
  const double low = reader.FloatOr("rope.scaling.low_freq_factor", 1.0);
  const double high = reader.FloatOr("rope.scaling.high_freq_factor", 4.0);
  const int original = reader.Int("rope.scaling.original_context_length", 1, kMaxContext);
  if (reader.ok() && !(low > 0 && high > low && high < 1e6)) {
    reader.Fail(DataLoss(file.Complaint(reader.Key("rope.scaling.low_freq_factor"),
                                        "must be positive and below the high one")));
  }
  if (reader.ok()) config.rope_divisors = Llama3Divisors(config, factor, low, high, original);
}

void ReadVocab(ConfigReader& reader, ModelConfig& config) {
  if (!reader.ok()) return;
  const GgufFile& file = reader.file();
  auto tokens = file.Array("tokenizer.ggml.tokens", GgufType::kString);
  if (!tokens.ok()) return reader.Fail(tokens.status());
  const int declared = reader.IntOr("vocab_size", 1, kMaxVocab, 0);
  const GgufTensor* embedding = file.FindTensor("token_embd.weight");
  const uint64_t rows = embedding == nullptr ? 0 : static_cast<uint64_t>(embedding->rows());
  uint64_t vocab = rows;
  std::string_view source = "token_embd.weight";
  if (tokens->has_value()) {
    vocab = (*tokens)->count;
    source = "tokenizer.ggml.tokens";
  } else if (declared > 0) {
    vocab = static_cast<uint64_t>(declared);
    source = "llama.vocab_size";
  }
  if (vocab < 1 || vocab > static_cast<uint64_t>(kMaxVocab)) {
    return reader.Fail(DataLoss(file.Complaint(
        source, std::to_string(vocab) + " tokens (limit 1 to " + std::to_string(kMaxVocab) + ")")));
  }
  config.vocab = static_cast<int>(vocab);
}

void CheckTensors(ConfigReader& reader, ModelConfig& config) {
  if (!reader.ok()) return;
  const int64_t hidden = config.hidden;
  const int64_t q = int64_t{config.heads} * config.k_dim;
  const int64_t k = int64_t{config.kv_heads} * config.k_dim;
  const int64_t v = int64_t{config.kv_heads} * config.v_dim;
  const int64_t attended = int64_t{config.heads} * config.v_dim;
  TensorTable table(reader.file());
  table.Require("token_embd.weight", {hidden, config.vocab});
  table.Require("output_norm.weight", {hidden});
  table.Allow("output.weight", {hidden, config.vocab});
  table.Allow("output.bias", {config.vocab});
  table.Ignore("rope_freqs.weight");
  for (int layer = 0; layer < config.layers && table.ok(); ++layer) {
    const std::string p = "blk." + std::to_string(layer) + ".";
    table.Require(p + "attn_norm.weight", {hidden});
    table.Require(p + "attn_q.weight", {hidden, q});
    table.Require(p + "attn_k.weight", {hidden, k});
    table.Require(p + "attn_v.weight", {hidden, v});
    table.Allow(p + "attn_q.bias", {q});
    table.Allow(p + "attn_k.bias", {k});
    table.Allow(p + "attn_v.bias", {v});
    table.Require(p + "attn_output.weight", {attended, hidden});
    table.Allow(p + "attn_output.bias", {hidden});
    table.Require(p + "ffn_norm.weight", {hidden});
    table.Require(p + "ffn_gate.weight", {hidden, config.ff});
    table.Require(p + "ffn_up.weight", {hidden, config.ff});
    table.Require(p + "ffn_down.weight", {config.ff, hidden});
    table.Ignore(p + "attn_rot_embd.weight");  // old converters: a copy of the RoPE steps
    table.Ignore(p + "attn_rot_embd");
  }
  table.CheckRest(config.layers, config.notes);
  if (!table.ok()) return reader.Fail(table.status());
  config.tied_output = reader.file().FindTensor("output.weight") == nullptr;
}

}  // namespace

Result<ModelConfig> ReadLlamaConfig(const GgufFile& file) {
  ConfigReader reader(file, "llama");
  ModelConfig config;
  ReadShape(reader, config);
  CheckShape(reader, config);
  RefuseOtherArithmetic(reader, config);
  ReadRopeScaling(reader, config);
  ReadVocab(reader, config);
  CheckTensors(reader, config);
  if (!reader.ok()) return reader.status();
  LayerKv row;
  row.kind = LayerCacheKind::kFull;
  row.kv_heads = config.kv_heads;
  row.k_dim = config.k_dim;
  row.v_dim = config.v_dim;
  config.cache.assign(static_cast<size_t>(config.layers), row);
  return config;
}

}  // namespace kvasir::internal
