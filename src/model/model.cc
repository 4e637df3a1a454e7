#include "model/model.h"

#include <bit>
#include <string_view>

#include "base/hash.h"
#include "model/weight_loader.h"

namespace kvasir {
namespace {

using internal::WeightLoader;

// A running hash over numbers and strings.
class Digest {
 public:
  void Add(uint64_t value) { state_ = CounterRandom(state_, 1, value); }
  void Add(double value) { Add(std::bit_cast<uint64_t>(value)); }
  void Add(std::span<const std::byte> bytes) { Add(Hash64(bytes)); }
  void Add(std::string_view text) { Add(std::as_bytes(std::span(text))); }
  uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 0;
};

void AddConfig(const ModelConfig& config, Digest& digest) {
  digest.Add(std::string_view(config.architecture));
  for (const int number : {config.layers, config.hidden, config.ff, config.heads, config.kv_heads,
                           config.k_dim, config.v_dim, config.rope_dims, config.vocab}) {
    digest.Add(static_cast<uint64_t>(number));
  }
  for (const double step : config.RopeSteps()) digest.Add(step);
  digest.Add(static_cast<double>(config.rms_eps));
}

// What text the token ids stand for: a stored prefix must not outlive a changed vocabulary or
// template.
void AddTokenizer(const GgufFile& file, Digest& digest) {
  for (const GgufKey& key : file.keys()) {
    if (!key.name.starts_with("tokenizer.")) continue;
    digest.Add(key.name);
    digest.Add(static_cast<uint64_t>(key.type));
    std::visit(
        [&]<typename T>(const T& value) {
          if constexpr (std::is_same_v<T, GgufArray>) {
            digest.Add(value.count);
            digest.Add(value.raw);
          } else if constexpr (std::is_same_v<T, std::string_view> || std::is_same_v<T, double>) {
            digest.Add(value);
          } else {
            digest.Add(static_cast<uint64_t>(value));
          }
        },
        key.value);
  }
}

// The biases of q, k and v side by side; a missing one is zeros if another is there.
std::vector<float> QkvBias(WeightLoader& loader, const std::string& prefix,
                           const ModelConfig& config) {
  const size_t kv_heads = static_cast<size_t>(config.kv_heads);
  const size_t sizes[] = {static_cast<size_t>(config.heads) * static_cast<size_t>(config.k_dim),
                          kv_heads * static_cast<size_t>(config.k_dim),
                          kv_heads * static_cast<size_t>(config.v_dim)};
  const char* const names[] = {"attn_q.bias", "attn_k.bias", "attn_v.bias"};
  std::vector<float> all;
  bool any = false;
  for (int i = 0; i < 3; ++i) {
    std::vector<float> bias = loader.VectorIfThere(prefix + names[i]);
    any |= !bias.empty();
    bias.resize(sizes[i], 0.0F);
    all.insert(all.end(), bias.begin(), bias.end());
  }
  return any ? all : std::vector<float>();
}

LayerWeights LoadLayer(WeightLoader& loader, int layer, const ModelConfig& config) {
  const std::string p = "blk." + std::to_string(layer) + ".";
  LayerWeights weights;
  weights.attn_norm = loader.Vector(p + "attn_norm.weight");
  weights.qkv = loader.Stack({p + "attn_q.weight", p + "attn_k.weight", p + "attn_v.weight"});
  weights.qkv_bias = QkvBias(loader, p, config);
  weights.attn_output = loader.Matrix(p + "attn_output.weight");
  weights.attn_output_bias = loader.VectorIfThere(p + "attn_output.bias");
  weights.ffn_norm = loader.Vector(p + "ffn_norm.weight");
  weights.gate_up = loader.Stack({p + "ffn_gate.weight", p + "ffn_up.weight"});
  weights.down = loader.Matrix(p + "ffn_down.weight");
  return weights;
}

}  // namespace

Result<std::unique_ptr<Model>> Model::Load(const std::string& path, Executor& executor,
                                           const LoadProgress& progress) {
  KVASIR_ASSIGN_OR_RETURN(GgufFile file, GgufFile::Open(path));
  std::unique_ptr<Model> model(new Model(std::move(file)));
  KVASIR_ASSIGN_OR_RETURN(model->config_, ReadModelConfig(model->file_));
  const ModelConfig& config = model->config_;
  WeightLoader loader(model->file_, executor, progress);
  model->embedding = loader.Matrix("token_embd.weight");
  for (int layer = 0; layer < config.layers && loader.ok(); ++layer) {
    model->layers.push_back(LoadLayer(loader, layer, config));
  }
  model->output_norm = loader.Vector("output_norm.weight");
  if (!config.tied_output) model->output = loader.Matrix("output.weight");
  model->output_bias = loader.VectorIfThere("output.bias");
  if (!loader.ok()) return loader.status();
  Digest digest;
  AddConfig(config, digest);
  AddTokenizer(model->file_, digest);
  digest.Add(loader.Hash());
  model->fingerprint_ = digest.value();
  if (progress) progress(1.0);
  return model;
}

size_t Model::weight_bytes() const {
  size_t total = embedding.bytes() + (output_norm.size() + output_bias.size()) * sizeof(float);
  if (!config_.tied_output) total += output.bytes();
  for (const LayerWeights& layer : layers) {
    for (const PackedMatrix& matrix : layer.qkv) total += matrix.bytes();
    for (const PackedMatrix& matrix : layer.gate_up) total += matrix.bytes();
    total += layer.attn_output.bytes() + layer.down.bytes();
    total += (layer.attn_norm.size() + layer.ffn_norm.size() + layer.qkv_bias.size() +
              layer.attn_output_bias.size()) *
             sizeof(float);
  }
  return total;
}

}  // namespace kvasir
