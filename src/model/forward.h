// The forward pass of a decoder over plain views. Knows no request and no pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/parallel.h"
#include "base/status.h"
#include "kernels/attention.h"
#include "kernels/matmul.h"
#include "model/kv_tail.h"
#include "model/model_config.h"

namespace kvasir {

enum class Precision : uint8_t {
  kFast,       // 8-bit activations everywhere
  kDefault,    // 8 bits; the model's two-term blocks in two terms
  kExact,      // two terms everywhere
  kReference,  // f32 activations: for tests and golden files, slow
};

std::string_view PrecisionName(Precision precision);  // "fast" "default" "exact" "reference"

// One call's work: `rows` tokens of several sequences, prefill chunks and decodes mixed in any
// order.
struct ForwardInput {
  std::span<const int32_t> tokens;     // [rows]
  std::span<const int32_t> positions;  // [rows]
  std::span<const AttentionSpanOfSequence> sequences;
  std::span<const PagedKv> layers;      // one per layer
  std::span<const int32_t> logit_rows;  // rows whose logits are wanted, ascending
  // For layers with K in i4 (model/kv_tail.h), and the slot of each sequence. Null: such layers
  // read their newest tokens from the cache too, which is another arithmetic than the product's.
  KvTail* tail = nullptr;
  std::span<const int32_t> slots = {};
};

// Receives logits in groups as they are computed, in the order of logit_rows: `count` rows of vocab
// floats, from logit_rows[first]. The buffer is reused after the call, and the sink may write into
// it.
using LogitSink = FunctionRef<void(int first, int count, float* logits)>;

// The inputs of products: four in each layer, and after the last layer the output head's.
enum class InputSite : uint8_t {
  kAttentionIn,
  kAttentionOut,
  kFeedForwardIn,
  kFeedForwardDown,
  kHeadIn,  // its layer is the number of layers
};
inline constexpr int kLayerSites = 4;
inline constexpr size_t kInputSites = kLayerSites + 1;
constexpr size_t InputIndex(size_t layer, InputSite site) {
  return layer * kLayerSites + (site == InputSite::kHeadIn ? 0 : static_cast<size_t>(site));
}
constexpr size_t InputCount(size_t layers) {
  return layers * kLayerSites + 1;
}
constexpr InputSite SiteOf(size_t input, size_t layers) {  // of an InputIndex
  return input == layers * kLayerSites ? InputSite::kHeadIn
                                       : static_cast<InputSite>(input % kLayerSites);
}

class Model;  // model/model.h

// Which blocks of 32 columns of each input get a second 8-bit term in Precision::kDefault: a
// constant of the model (calibrate/two_term_finder.h finds it).
struct TwoTermBlocks {
  std::vector<std::vector<uint8_t>> blocks;  // [InputIndex][column / 32], 0 or 1
  std::span<const uint8_t> At(size_t layer, InputSite site) const {
    if (blocks.empty()) return {};
    return blocks[InputIndex(layer, site)];
  }
};

// Constants that make keys easier to quantise, exactly: a cache in i8 or i4 holds (K - centre) /
// balance and is asked with q * balance (calibrate/key_conditioning.h finds them). Runners put them
// into the views of the cache (kernels/attention.h).
struct KeyConditioning {
  std::vector<std::vector<float>> centre;   // [layer][kv_head * k_dim + channel]; empty: none
  std::vector<std::vector<float>> balance;  // the same; every number is positive and finite
  bool empty() const { return centre.empty(); }
};

// Sees the input of every product as it comes, before it is rounded: `rows` rows of `columns`
// floats, row stride ldx. Called by the thread that runs the pass.
class InputObserver {
 public:
  virtual ~InputObserver() = default;
  virtual void OnInput(int layer, InputSite site, const float* x, size_t ldx, int rows,
                       int columns) = 0;
  // q: rows of heads*k_dim floats, k: rows of kv_heads*k_dim, both with row stride ld, before RoPE.
  virtual void OnQueryKey(int /*layer*/, const float* /*q*/, const float* /*k*/, size_t /*ld*/,
                          int /*rows*/) {}
};

// May change K and V of a call before they are written into the cache, so that a cache can be made
// worse on purpose (certificates' negative control). After RoPE; `rows` rows of kv_heads * k_dim
// and kv_heads * v_dim floats, row strides ldk and ldv. Different rows may come from several
// threads at once.
class KvFilter {
 public:
  virtual ~KvFilter() = default;
  virtual void OnKv(int layer, float* k, size_t ldk, float* v, size_t ldv, int rows) = 0;
};

struct ForwardOptions {
  Precision precision = Precision::kDefault;
  int max_rows = 0;                   // of one call: scratch is taken at once, not later
  int max_positions = 0;              // bounds positions
  TwoTermBlocks two_terms;            // read by kDefault; empty: none
  InputObserver* observer = nullptr;  // outlives the pass
  KvFilter* kv_filter = nullptr;      // outlives the pass
  KeyConditioning keys = {};          // for layers whose K is kept in i8 or i4
};

// The matrices that read an input (an InputIndex): never none, all of one column count.
std::span<const PackedMatrix> ReadersOf(const Model& model, size_t input);

class ForwardPass {
 public:
  static Result<std::unique_ptr<ForwardPass>> Make(const Model& model, ForwardOptions options,
                                                   Executor& executor);
  virtual ~ForwardPass() = default;
  virtual Status Run(const ForwardInput& input, LogitSink sink) = 0;
  virtual size_t scratch_bytes() const = 0;
};

inline constexpr int kLogitGroup = 16;  // rows of logits held at once

}  // namespace kvasir
