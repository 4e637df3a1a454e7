// A loaded model: config, packed weights, and the tokenizer's raw material. Immutable after Load;
// any thread may read.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "base/status.h"
#include "kernels/matmul.h"
#include "model/gguf.h"
#include "model/model_config.h"

namespace kvasir {

struct LayerWeights {
  std::vector<float> attn_norm, ffn_norm;
  // One matrix where the types agree (q, k, v stacked; gate, up stacked), else one per tensor, in
  // that order.
  std::vector<PackedMatrix> qkv;
  std::vector<float> qkv_bias;  // heads*k_dim + kv_heads*(k_dim+v_dim) floats, empty if none
  PackedMatrix attn_output;
  std::vector<float> attn_output_bias;
  std::vector<PackedMatrix> gate_up;
  PackedMatrix down;
};

// Called from the loading thread with a growing fraction; the last call says 1.
using LoadProgress = std::function<void(double fraction)>;

class Model {
 public:
  // path: a GGUF file, or the first of its shards. Fails with kDataLoss / kUnimplemented /
  // kNotFound; the message starts with the file's name and gives the offset where that helps.
  static Result<std::unique_ptr<Model>> Load(const std::string& path, Executor& executor,
                                             const LoadProgress& progress = {});

  const ModelConfig& config() const { return config_; }
  const GgufFile& file() const { return file_; }  // metadata stays readable (tokenizer, template)
  size_t weight_bytes() const;                    // packed, in memory
  // Of the config, the tokenizer's keys, and name, type, shape and every byte of the tensors in
  // use: two files with one fingerprint compute the same. The same on every machine.
  uint64_t fingerprint() const { return fingerprint_; }

  PackedMatrix embedding;  // also the output head if tied
  std::vector<LayerWeights> layers;
  std::vector<float> output_norm;
  PackedMatrix output;  // rows() == 0 if tied
  std::vector<float> output_bias;
  const PackedMatrix& head() const { return config_.tied_output ? embedding : output; }

 private:
  explicit Model(GgufFile file) : file_(std::move(file)) {}
  GgufFile file_;
  ModelConfig config_;
  uint64_t fingerprint_ = 0;
};

// Checks a file's metadata and tensor shapes without touching weights: what `inspect`, the planner
// and Load share.
Result<ModelConfig> ReadModelConfig(const GgufFile& file);

}  // namespace kvasir
