// What a model file says about the network, checked. `model(config)` in the layering: the planner
// and the simulator may include this header and nothing else of the folder.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "quant/kv_spec.h"

namespace kvasir {

// What is served at most; the largest public models stay well below.
inline constexpr int64_t kMaxLayers = 1024;
inline constexpr int64_t kMaxHidden = 1 << 17;
inline constexpr int64_t kMaxFf = 1 << 20;
inline constexpr int64_t kMaxHeads = 1024;
inline constexpr int64_t kMaxHeadDim = 1024;
inline constexpr int64_t kMaxVocab = 1 << 22;
inline constexpr int64_t kMaxContext = 1 << 24;

enum class RopeScaling : uint8_t { kNone, kLinear, kLlama3 };

struct ModelConfig {
  std::string architecture;  // "llama"
  std::string name;          // general.name, "" if absent
  int layers = 0;
  int hidden = 0;
  int ff = 0;
  int heads = 0;
  int kv_heads = 0;
  int k_dim = 0;  // per head
  int v_dim = 0;
  int rope_dims = 0;
  int vocab = 0;
  int context = 0;  // tokens the model was trained for
  double rope_base = 10000.0;
  RopeScaling rope_scaling = RopeScaling::kNone;
  double rope_factor = 1.0;  // linear: positions are divided by it
  // Per-pair divisors of the angular step; from the file's rope_freqs tensor (how GGUF carries
  // llama3 scaling), else empty.
  std::vector<float> rope_divisors;
  float rms_eps = 1e-5F;
  bool tied_output = false;
  std::vector<LayerKv> cache;  // one row per layer
  // What the file holds and we do not use, a line each ("tensor 'x' is not used"): for inspect and
  // the log.
  std::vector<std::string> notes;

  // theta_i of ApplyRope's table.
  std::vector<double> RopeSteps() const;
};

}  // namespace kvasir
