#include "model/forward.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/buffer.h"
#include "base/check.h"
#include "kernels/elementwise.h"
#include "model/model.h"

namespace kvasir {
namespace {

// Below this many numbers a small operation costs less than waking another thread.
constexpr size_t kSerialBelow = 16384;

ActMode ModeOf(Precision precision) {
  switch (precision) {
    case Precision::kFast:
    case Precision::kDefault:
      return ActMode::kInt8;
    case Precision::kExact:
      return ActMode::kInt8x2;
    case Precision::kReference:
      break;
  }
  return ActMode::kF32;
}

// Matrices that read the same rows, written side by side into rows of one buffer.
void Project(std::span<const PackedMatrix> matrices, Activations mode, std::span<const float> bias,
             const float* x, size_t ldx, int rows, float* y, size_t ldy, MatmulScratch& scratch,
             Executor& executor) {
  KVASIR_CHECK(matrices.size() <= 3);
  MatmulTarget targets[3];
  size_t column = 0;
  for (size_t i = 0; i < matrices.size(); ++i) {
    const auto n = static_cast<size_t>(matrices[i].rows());
    targets[i] = {&matrices[i], y + column, ldy, bias.empty() ? bias : bias.subspan(column, n)};
    column += n;
  }
  MatmulMany(std::span(targets, matrices.size()), mode, x, ldx, rows, scratch, executor);
}

// The decoder of llama files: per layer RMSNorm, Q K V, RoPE, paged attention, output projection,
// RMSNorm, gated FFN.
class LlamaForward final : public ForwardPass {
 public:
  LlamaForward(const Model& model, ForwardOptions options, Executor& executor)
      : model_(model),
        config_(model.config()),
        options_(std::move(options)),
        mode_(ModeOf(options_.precision)),
        executor_(executor),
        rope_(config_.RopeSteps(), 1.0F, options_.max_positions),
        hidden_(static_cast<size_t>(config_.hidden)),
        q_width_(static_cast<size_t>(config_.heads) * static_cast<size_t>(config_.k_dim)),
        k_width_(static_cast<size_t>(config_.kv_heads) * static_cast<size_t>(config_.k_dim)),
        v_width_(static_cast<size_t>(config_.kv_heads) * static_cast<size_t>(config_.v_dim)),
        out_width_(static_cast<size_t>(config_.heads) * static_cast<size_t>(config_.v_dim)),
        ff_(static_cast<size_t>(config_.ff)),
        x_(MaxRows() * hidden_),
        normed_(MaxRows() * hidden_),
        added_(MaxRows() * hidden_),
        qkv_(MaxRows() * qkv_width()),
        attended_(MaxRows() * out_width_),
        gate_up_(MaxRows() * 2 * ff_),
        logits_(static_cast<size_t>(kLogitGroup) * static_cast<size_t>(config_.vocab)) {}

  Status Run(const ForwardInput& input, LogitSink sink) override {
    KVASIR_RETURN_IF_ERROR(Check(input));
    int rows = static_cast<int>(input.tokens.size());
    if (rows == 0) return Status::Ok();
    Embed(input.tokens);
    clipped_.resize(static_cast<size_t>(executor_.workers()));
    if (input.tail != nullptr) input.tail->Begin(input.sequences, input.slots);
    for (size_t layer = 0; layer < model_.layers.size(); ++layer) {
      const LayerWeights& weights = model_.layers[layer];
      const bool last = layer + 1 == model_.layers.size();
      ReadKv(weights, input, layer, rows);
      // After the last layer's K and V are written, only rows whose logits are wanted matter.
      if (last && input.logit_rows.empty()) return Status::Ok();
      Attend(input, layer);
      if (last) rows = KeepRows(input.logit_rows);
      Observe(layer, InputSite::kAttentionOut, attended_.data(), out_width_, rows, out_width_);
      Matmul(weights.attn_output, At(layer, InputSite::kAttentionOut), attended_.data(), out_width_,
             rows, added_.data(), hidden_, weights.attn_output_bias, matmul_scratch_, executor_);
      AddAndNorm(weights.ffn_norm, rows);
      FeedForward(weights, layer, rows);
      AddAndNorm(last ? model_.output_norm : model_.layers[layer + 1].attn_norm, rows);
    }
    Logits(rows, sink);
    return Status::Ok();
  }

  size_t scratch_bytes() const override {
    const size_t floats = x_.size() + normed_.size() + added_.size() + qkv_.size() +
                          attended_.size() + gate_up_.size() + logits_.size();
    const size_t table =
        2 * static_cast<size_t>(rope_.pairs()) * static_cast<size_t>(rope_.max_positions());
    return (floats + table) * sizeof(float);
  }

 private:
  size_t MaxRows() const { return static_cast<size_t>(options_.max_rows); }
  size_t qkv_width() const { return q_width_ + k_width_ + v_width_; }

  // How the input of products is rounded.
  Activations At(size_t layer, InputSite site) const {
    Activations activations(mode_);
    if (options_.precision == Precision::kDefault) {
      activations.two_terms = options_.two_terms.At(layer, site);
    }
    return activations;
  }

  void Observe(size_t layer, InputSite site, const float* x, size_t ldx, int rows, size_t columns) {
    if (options_.observer == nullptr) return;
    options_.observer->OnInput(static_cast<int>(layer), site, x, ldx, rows,
                               static_cast<int>(columns));
  }

  Executor& For(int rows, size_t width) {
    return static_cast<size_t>(rows) * width < kSerialBelow ? static_cast<Executor&>(serial_)
                                                            : executor_;
  }

  // Small passes over the same rows as one piece of work: body(first, count, worker) for chunks of
  // rows, each row in one of them.
  template <typename Body>
  void ForChunks(int rows, size_t width, Body body) {
    constexpr size_t kPartsPerWorker = 4;
    Executor& executor = For(rows, width);
    const auto count = static_cast<size_t>(rows);
    const size_t parts = std::min(count, static_cast<size_t>(executor.workers()) * kPartsPerWorker);
    if (parts <= 1 || executor.workers() == 1) {
      body(0, rows, 0);
      return;
    }
    executor.ParallelFor(parts, [&](size_t part, int worker) {
      const size_t first = count * part / parts;
      body(static_cast<int>(first), static_cast<int>(count * (part + 1) / parts - first), worker);
    });
  }

  Status Check(const ForwardInput& input) const {
    const size_t rows = input.tokens.size();
    KVASIR_CHECK(input.positions.size() == rows);
    KVASIR_CHECK(input.layers.size() == model_.layers.size());
    KVASIR_CHECK(rows <= static_cast<size_t>(options_.max_rows));
    for (size_t i = 0; i < rows; ++i) {
      if (input.tokens[i] < 0 || input.tokens[i] >= config_.vocab) {
        return InvalidArgument("token id " + std::to_string(input.tokens[i]) +
                               " is outside the vocabulary (limit " +
                               std::to_string(config_.vocab - 1) + ")");
      }
      if (input.positions[i] < 0 || input.positions[i] >= rope_.max_positions()) {
        return InvalidArgument("position " + std::to_string(input.positions[i]) + " (limit " +
                               std::to_string(rope_.max_positions() - 1) + ")");
      }
    }
    int32_t before = -1;
    for (const int32_t row : input.logit_rows) {
      KVASIR_CHECK(row > before && static_cast<size_t>(row) < rows);
      before = row;
    }
    for (size_t i = 0; i < input.layers.size(); ++i) {
      const PagedKv& kv = input.layers[i];
      KVASIR_CHECK(kv.kv_heads == config_.kv_heads && kv.k_dim == config_.k_dim &&
                   kv.v_dim == config_.v_dim);
    }
    return Status::Ok();
  }

  // And the first layer's norm.
  void Embed(std::span<const int32_t> tokens) {
    ForChunks(static_cast<int>(tokens.size()), hidden_, [&](int first, int count, int) {
      for (size_t row = static_cast<size_t>(first); row < static_cast<size_t>(first + count); ++row)
        model_.embedding.Row(tokens[row], x_.span().subspan(row * hidden_, hidden_));
      Norm(model_.layers.front().attn_norm, first, count);
    });
  }

  void Norm(std::span<const float> weight, int first, int count) {
    const size_t at = static_cast<size_t>(first) * hidden_;
    RmsNorm(x_.data() + at, hidden_, count, weight, config_.rms_eps, normed_.data() + at, hidden_,
            serial_);
  }

  // What a sub-layer adds, and the norm that the next one reads.
  void AddAndNorm(std::span<const float> weight, int rows) {
    ForChunks(rows, hidden_, [&](int first, int count, int) {
      const size_t at = static_cast<size_t>(first) * hidden_;
      AddInPlace(x_.data() + at, hidden_, added_.data() + at, hidden_, count, config_.hidden,
                 serial_);
      Norm(weight, first, count);
    });
  }

  // Q K V, RoPE, and K and V into the cache.
  void ReadKv(const LayerWeights& weights, const ForwardInput& input, size_t layer, int rows) {
    Observe(layer, InputSite::kAttentionIn, normed_.data(), hidden_, rows, hidden_);
    Project(weights.qkv, At(layer, InputSite::kAttentionIn), weights.qkv_bias, normed_.data(),
            hidden_, rows, qkv_.data(), qkv_width(), matmul_scratch_, executor_);
    if (options_.observer != nullptr) {
      options_.observer->OnQueryKey(static_cast<int>(layer), qkv_.data(), qkv_.data() + q_width_,
                                    qkv_width(), rows);
    }
    ForChunks(rows, qkv_width(), [&](int first, int count, int worker) {
      float* q = qkv_.data() + static_cast<size_t>(first) * qkv_width();
      const auto positions =
          input.positions.subspan(static_cast<size_t>(first), static_cast<size_t>(count));
      ApplyRope(q, qkv_width(), count, config_.heads, config_.k_dim, positions, rope_,
                RopeStyle::kInterleaved, serial_);
      ApplyRope(q + q_width_, qkv_width(), count, config_.kv_heads, config_.k_dim, positions, rope_,
                RopeStyle::kInterleaved, serial_);
      if (options_.kv_filter != nullptr) {
        options_.kv_filter->OnKv(static_cast<int>(layer), q + q_width_, qkv_width(),
                                 q + q_width_ + k_width_, qkv_width(), count);
      }
      const float* k = qkv_.data() + q_width_;
      WriteKv(input.layers[layer], Clip(input.sequences, first, count, worker), k, qkv_width(),
              k + k_width_, qkv_width(), serial_);
      if (const PagedKv* tail = TailOf(input, layer)) {
        WriteKv(*tail, Clip(input.tail->chunks(), first, count, worker), k, qkv_width(),
                k + k_width_, qkv_width(), serial_);
      }
    });
  }

  static const PagedKv* TailOf(const ForwardInput& input, size_t layer) {
    return input.tail != nullptr ? input.tail->layer(layer) : nullptr;
  }

  void Attend(const ForwardInput& input, size_t layer) {
    const float scale = 1.0F / std::sqrt(static_cast<float>(config_.k_dim));
    if (const PagedKv* tail = TailOf(input, layer)) {
      PagedAttention(input.layers[layer], input.sequences, {tail, input.tail->chunks()},
                     config_.heads, scale, qkv_.data(), qkv_width(), attended_.data(), out_width_,
                     attention_scratch_, executor_);
    } else {
      PagedAttention(input.layers[layer], input.sequences, config_.heads, scale, qkv_.data(),
                     qkv_width(), attended_.data(), out_width_, attention_scratch_, executor_);
    }
  }

  // The parts of the sequences that lie in rows [first, first + count).
  std::span<const AttentionSpanOfSequence> Clip(std::span<const AttentionSpanOfSequence> sequences,
                                                int first, int count, int worker) {
    std::vector<AttentionSpanOfSequence>& out = clipped_[static_cast<size_t>(worker)];
    out.clear();
    for (AttentionSpanOfSequence part : sequences) {
      const int begin = std::max(part.row, first);
      const int end = std::min(part.row + part.tokens, first + count);
      if (begin >= end) continue;
      part.position += begin - part.row;
      part.row = begin;
      part.tokens = end - begin;
      out.push_back(part);
    }
    return out;
  }

  // Moves the wanted rows of the residual stream and of the attention's output to the front. They
  // ascend, so a row is never overwritten before it was moved.
  int KeepRows(std::span<const int32_t> wanted) {
    for (size_t to = 0; to < wanted.size(); ++to) {
      const auto from = static_cast<size_t>(wanted[to]);
      if (from == to) continue;
      std::memcpy(x_.data() + to * hidden_, x_.data() + from * hidden_, hidden_ * sizeof(float));
      std::memcpy(attended_.data() + to * out_width_, attended_.data() + from * out_width_,
                  out_width_ * sizeof(float));
    }
    return static_cast<int>(wanted.size());
  }

  void FeedForward(const LayerWeights& weights, size_t layer, int rows) {
    Observe(layer, InputSite::kFeedForwardIn, normed_.data(), hidden_, rows, hidden_);
    Project(weights.gate_up, At(layer, InputSite::kFeedForwardIn), {}, normed_.data(), hidden_,
            rows, gate_up_.data(), 2 * ff_, matmul_scratch_, executor_);
    SiluMul(gate_up_.data(), 2 * ff_, gate_up_.data() + ff_, 2 * ff_, rows, config_.ff,
            gate_up_.data(), 2 * ff_, For(rows, ff_));
    Observe(layer, InputSite::kFeedForwardDown, gate_up_.data(), 2 * ff_, rows, ff_);
    Matmul(weights.down, At(layer, InputSite::kFeedForwardDown), gate_up_.data(), 2 * ff_, rows,
           added_.data(), hidden_, {}, matmul_scratch_, executor_);
  }

  void Logits(int rows, LogitSink sink) {
    const size_t layer = model_.layers.size();
    Observe(layer, InputSite::kHeadIn, normed_.data(), hidden_, rows, hidden_);
    for (int first = 0; first < rows; first += kLogitGroup) {
      const int count = std::min(kLogitGroup, rows - first);
      const float* x = normed_.data() + static_cast<size_t>(first) * hidden_;
      Matmul(model_.head(), At(layer, InputSite::kHeadIn), x, hidden_, count, logits_.data(),
             static_cast<size_t>(config_.vocab), model_.output_bias, matmul_scratch_, executor_);
      sink(first, count, logits_.data());
    }
  }

  const Model& model_;
  const ModelConfig& config_;
  const ForwardOptions options_;
  const ActMode mode_;
  Executor& executor_;
  SerialExecutor serial_;
  RopeTable rope_;
  const size_t hidden_, q_width_, k_width_, v_width_, out_width_, ff_;
  Buffer<float> x_;         // residual stream, [rows][hidden]
  Buffer<float> normed_;    // [rows][hidden]
  Buffer<float> added_;     // what a sub-layer adds, [rows][hidden]
  Buffer<float> qkv_;       // [rows][q | k | v]
  Buffer<float> attended_;  // [rows][heads * v_dim]
  Buffer<float> gate_up_;   // [rows][gate | up]
  Buffer<float> logits_;    // [kLogitGroup][vocab]
  std::vector<std::vector<AttentionSpanOfSequence>> clipped_;  // per worker
  MatmulScratch matmul_scratch_;
  AttentionScratch attention_scratch_;
};

}  // namespace

std::string_view PrecisionName(Precision precision) {
  switch (precision) {
    case Precision::kFast:
      return "fast";
    case Precision::kDefault:
      return "default";
    case Precision::kExact:
      return "exact";
    case Precision::kReference:
      break;
  }
  return "reference";
}

std::span<const PackedMatrix> ReadersOf(const Model& model, size_t input) {
  const size_t layer = input / kLayerSites;
  switch (SiteOf(input, model.layers.size())) {
    case InputSite::kAttentionIn:
      return model.layers[layer].qkv;
    case InputSite::kAttentionOut:
      return {&model.layers[layer].attn_output, 1};
    case InputSite::kFeedForwardIn:
      return model.layers[layer].gate_up;
    case InputSite::kFeedForwardDown:
      return {&model.layers[layer].down, 1};
    case InputSite::kHeadIn:
      break;
  }
  return {&model.head(), 1};
}

Result<std::unique_ptr<ForwardPass>> ForwardPass::Make(const Model& model, ForwardOptions options,
                                                       Executor& executor) {
  if (options.max_rows < 1 || options.max_rows > (1 << 20)) {
    return InvalidArgument("rows in a step: " + std::to_string(options.max_rows) +
                           " (limit 1 to 1,048,576)");
  }
  if (options.max_positions < 1 || options.max_positions > kMaxContext) {
    return InvalidArgument("positions: " + std::to_string(options.max_positions) + " (limit 1 to " +
                           std::to_string(kMaxContext) + ")");
  }
  if (!options.two_terms.blocks.empty()) {
    KVASIR_CHECK(options.two_terms.blocks.size() == InputCount(model.layers.size()));
  }
  return std::unique_ptr<ForwardPass>(
      std::make_unique<LlamaForward>(model, std::move(options), executor));
}

}  // namespace kvasir
