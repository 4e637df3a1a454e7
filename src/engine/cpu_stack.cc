#include "engine/cpu_stack.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>

#include "base/units.h"
#include "calibrate/calibration.h"
#include "calibrate/paged_views.h"
#include "certify/choose_kv.h"
#include "engine/cpu_arena.h"
#include "engine/cpu_runner.h"
#include "engine/pool_size.h"
#include "env/clock.h"
#include "env/machine.h"
#include "env/thread_pool.h"
#include "kernels/isa.h"
#include "scheduler/scheduler_types.h"

namespace kvasir {
namespace {

constexpr int32_t kAutomaticBudget = 512;
// Beside somebody who decodes: a quarter of the wait, for a few per cent of the prompts' speed.
constexpr int32_t kAutomaticPrefillBesideDecodes = 128;

// Scratch of one row of a step, about: what the forward pass holds between its products.
uint64_t RowBytes(const ModelConfig& config) {
  const auto width = [](int64_t a, int64_t b) { return static_cast<uint64_t>(a * b); };
  const uint64_t floats =
      width(3, config.hidden) + width(2 * int64_t{config.heads} + config.kv_heads, config.k_dim) +
      width(int64_t{config.heads} + config.kv_heads, config.v_dim) + width(3, config.ff);
  return floats * sizeof(float);
}

// Rows of a step that nobody asked for in number: 512, fewer if their scratch would take more than
// 1/16 of free memory.
int32_t AutomaticBudget(const ModelConfig& config, uint64_t free_bytes) {
  int32_t rows = kAutomaticBudget;
  while (rows > 64 && RowBytes(config) * static_cast<uint64_t>(rows) > free_bytes / 16) rows /= 2;
  return rows;
}

// What stands beside the pool: rows of a step, the table of angles, a group of logits.
uint64_t ScratchBytes(const ModelConfig& config, int32_t rows, int32_t context) {
  return RowBytes(config) * static_cast<uint64_t>(rows) +
         static_cast<uint64_t>(config.rope_dims) * sizeof(float) * static_cast<uint64_t>(context) +
         static_cast<uint64_t>(config.vocab) * sizeof(float) * kLogitGroup;
}

// What sequences keep beside the pool (model/kv_tail.h): taken when they run, so a few seats in use
// cost little. An automatic pool leaves room for all of them, but not more than an eighth.
uint64_t TailRoom(uint64_t slot_bytes, int32_t seats, uint64_t free_bytes) {
  return std::min(static_cast<uint64_t>(seats) * slot_bytes, free_bytes / 8);
}

std::string TailNote(uint64_t slot_bytes, int32_t seats) {
  return "K in i4: the newest " + std::to_string(kKvTailTokens) +
         " tokens of a sequence are in i8, " + FormatSize(slot_bytes) +
         " for each that runs or is swapped out (at most " +
         FormatSize(static_cast<uint64_t>(SlotsFor(seats)) * slot_bytes) + "), beside the pool";
}

// Are constants of the keys needed, for the cache or for choosing it? Refuses formats that nobody
// knows.
Result<bool> MayNeedKeys(const StackOptions& options) {
  if (options.kv_type_k == kKvAuto && options.kv_type_v == kKvAuto) return true;
  KVASIR_ASSIGN_OR_RETURN(
      const CacheFormat format,
      ParseCacheFormat(options.kv_type_k + "/" + options.kv_type_v, "--kv-type"));
  const std::vector<KvType> types = TypesIn(format);
  return std::any_of(types.begin(), types.end(), KvTypeIsInteger);
}

class LocalCpuStack final : public CpuStack {
 public:
  Engine& engine() override { return *engine_; }
  const Model& model() const override { return *model_; }
  uint64_t pool_bytes() const override {
    return static_cast<uint64_t>(arena_->blocks()) * arena_->layout().block_bytes();
  }

  const std::vector<std::string>& notes() const override { return notes_; }

  Status Build(const StackOptions& options, StepObserver* observer, const StackProgress& progress);

 private:
  Status MakeExecutor(const StackOptions& options);
  Status LoadModel(const StackOptions& options, const StackProgress& progress);
  Status Calibrate(const StackOptions& options, CalibrationWish wish,
                   const StackProgress& progress);
  Status ChooseKv(const StackOptions& options, const StackProgress& progress);

  // Each uses those above it; the engine goes first.
  SteadyClock clock_;
  std::unique_ptr<ThreadPool> executor_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<CpuArena> arena_;
  std::unique_ptr<CpuRunner> runner_;
  std::unique_ptr<Engine> engine_;
  Calibration calibration_;
  KvDecision kv_;
  std::vector<std::string> notes_;
};

Status LocalCpuStack::MakeExecutor(const StackOptions& options) {
  const int threads = options.threads > 0 ? options.threads : PhysicalCores();
  if (!options.cpus.empty() && options.cpus.size() != static_cast<size_t>(threads)) {
    return InvalidArgument("--pin-threads names " + std::to_string(options.cpus.size()) +
                               " CPUs for " + std::to_string(threads) + " threads",
                           "--pin-threads");
  }
  executor_ = std::make_unique<ThreadPool>(threads, options.cpus);
  return Status::Ok();
}

Status LocalCpuStack::LoadModel(const StackOptions& options, const StackProgress& progress) {
  KVASIR_ASSIGN_OR_RETURN(model_, Model::Load(options.model_path, *executor_, [&](double fraction) {
                            if (progress) progress("loading", fraction);
                          }));
  return Status::Ok();
}

// What the chosen precision and cache need to know about the model.
Status LocalCpuStack::Calibrate(const StackOptions& options, CalibrationWish wish,
                                const StackProgress& progress) {
  if (!wish.two_terms && !wish.keys) return Status::Ok();
  Sidecar sidecar(options.model_path, model_->fingerprint());
  bool computed = false;
  const int64_t start_ns = clock_.NowNs();
  const auto report = [&](double fraction) {
    computed = true;
    if (progress) progress("studying (once)", fraction);
  };
  KVASIR_ASSIGN_OR_RETURN(calibration_,
                          LoadCalibration(*model_, wish, &sidecar, *executor_, report, &notes_));
  if (computed) {
    char seconds[32];
    std::snprintf(seconds, sizeof(seconds), "%.1f",
                  static_cast<double>(clock_.NowNs() - start_ns) * 1e-9);
    notes_.push_back("studied the model once in " + std::string(seconds) + " s" +
                     (sidecar.path().empty() ? "" : ", kept in " + sidecar.path()));
  }
  return Status::Ok();
}

// The cache's format, and what is known about it for this model.
Status LocalCpuStack::ChooseKv(const StackOptions& options, const StackProgress& progress) {
  KVASIR_ASSIGN_OR_RETURN(const KvQuality quality,
                          ParseKvQuality(options.kv_quality, "--kv-quality"));
  Sidecar sidecar(options.model_path, model_->fingerprint());
  ForwardOptions forward;
  forward.precision = options.precision;
  forward.two_terms = calibration_.two_terms;
  forward.keys = calibration_.keys;
  const auto report = [&](double fraction) {
    if (progress) progress("trying a smaller cache (once)", fraction);
  };
  KVASIR_ASSIGN_OR_RETURN(kv_, DecideKv(*model_, options.kv_type_k, options.kv_type_v, &sidecar,
                                        quality, forward, *executor_, report, &notes_));
  return Status::Ok();
}

Status LocalCpuStack::Build(const StackOptions& options, StepObserver* observer,
                            const StackProgress& progress) {
  EngineOptions engine = options.engine;
  KVASIR_RETURN_IF_ERROR(engine.Validate());
  if (options.threads < 0 || options.threads > 1024) {
    return InvalidArgument(
        "--threads is " + std::to_string(options.threads) + ", must be 1 to 1024", "--threads");
  }
  CalibrationWish wish;
  wish.two_terms = options.precision == Precision::kDefault;
  KVASIR_ASSIGN_OR_RETURN(wish.keys, MayNeedKeys(options));
  KVASIR_RETURN_IF_ERROR(MakeExecutor(options));
  KVASIR_RETURN_IF_ERROR(LoadModel(options, progress));
  const ModelConfig& config = model_->config();
  KVASIR_RETURN_IF_ERROR(Calibrate(options, wish, progress));
  KVASIR_RETURN_IF_ERROR(ChooseKv(options, progress));
  KVASIR_ASSIGN_OR_RETURN(KvLayout layout, MakeKvLayout(config, kv_.format, options.block_tokens));

  const int32_t context =
      engine.max_model_len > 0 ? std::min(engine.max_model_len, config.context) : config.context;
  PoolRequest pool;
  pool.kv_bytes = options.kv_bytes;
  pool.kv_blocks = options.kv_blocks;
  const uint64_t free_bytes = FreeMemoryBytes();
  if (engine.max_num_batched_tokens == 0) {
    engine.max_num_batched_tokens = AutomaticBudget(config, free_bytes);
    engine.prefill_beside_decodes = kAutomaticPrefillBesideDecodes;
  }
  const uint64_t scratch = ScratchBytes(config, engine.max_num_batched_tokens, context);
  if (scratch >= free_bytes) {
    return OutOfMemory("--max-num-batched-tokens " + std::to_string(engine.max_num_batched_tokens) +
                       " needs " + FormatSize(scratch) + " of scratch, " + FormatSize(free_bytes) +
                       " are free; at most " + std::to_string(free_bytes / 2 / RowBytes(config)) +
                       " would fit in half of it");
  }
  const int32_t seats = std::min(engine.max_num_seqs, engine.max_num_batched_tokens);
  const uint64_t slot = KvTail::BytesPerSlot(PagedViews(layout, nullptr, calibration_.keys));
  pool.free_bytes = free_bytes - scratch - TailRoom(slot, seats, free_bytes - scratch);
  if (slot > 0) notes_.push_back(TailNote(slot, seats));
  pool.block_bytes = layout.block_bytes();
  pool.block_tokens = options.block_tokens;
  pool.most_tokens = static_cast<int64_t>(engine.max_num_seqs) * context;
  KVASIR_ASSIGN_OR_RETURN(const int32_t blocks, PoolBlocks(pool));
  const int64_t pool_tokens = static_cast<int64_t>(blocks) * options.block_tokens;
  const int max_positions = static_cast<int>(std::min<int64_t>(context, pool_tokens));
  KVASIR_ASSIGN_OR_RETURN(arena_, CpuArena::Make(std::move(layout), blocks));
  ForwardOptions forward;
  forward.precision = options.precision;
  forward.max_rows = engine.max_num_batched_tokens;
  forward.max_positions = max_positions;
  forward.two_terms = std::move(calibration_.two_terms);
  forward.keys = std::move(calibration_.keys);
  KVASIR_ASSIGN_OR_RETURN(
      runner_, CpuRunner::Make(*model_, arena_.get(), std::move(forward), seats, *executor_));
  WorkerInfo info;
  info.max_model_len = config.context;
  info.kv_type_k = kv_.format.k;
  info.kv_type_v = kv_.format.v;
  info.kv_verdict = kv_.verdict.text;
  info.kv_failed = kv_.verdict.standing == KvStanding::kFailed;
  info.threads = executor_->workers();
  info.isa = std::string(IsaName(CurrentIsa()));
  info.precision = std::string(PrecisionName(options.precision));
  KVASIR_ASSIGN_OR_RETURN(engine_, Engine::Make(engine, std::move(info), runner_.get(),
                                                arena_.get(), &clock_, executor_.get(), observer));
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<CpuStack>> CpuStack::Make(const StackOptions& options,
                                                 StepObserver* observer,
                                                 const StackProgress& progress) {
  auto stack = std::make_unique<LocalCpuStack>();
  KVASIR_RETURN_IF_ERROR(stack->Build(options, observer, progress));
  return std::unique_ptr<CpuStack>(std::move(stack));
}

}  // namespace kvasir
