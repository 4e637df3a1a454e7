#include "apps/loaded_model.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <map>

#include "apps/model_path.h"
#include "base/units.h"
#include "env/machine.h"
#include "server/tokenizer_from_gguf.h"

namespace kvasir {
namespace {

Result<Precision> ParsePrecision(const std::string& name) {
  static const std::map<std::string, Precision> known = {
      {"fast", Precision::kFast}, {"default", Precision::kDefault}, {"exact", Precision::kExact}};
  const auto it = known.find(name);
  if (it != known.end()) return it->second;
  return InvalidArgument("--precision " + name + ": must be fast, default or exact", "precision");
}

// Rewrites one line of the terminal; quiet elsewhere.
class LoadLine {
 public:
  explicit LoadLine(const std::string& name) : name_(name), terminal_(isatty(STDERR_FILENO) != 0) {}
  ~LoadLine() {
    if (shown_ >= 0) std::fprintf(stderr, "\r\x1b[K");
  }
  LoadLine(const LoadLine&) = delete;
  LoadLine& operator=(const LoadLine&) = delete;
  void Show(const char* what, double fraction) {
    const int percent = static_cast<int>(fraction * 100);
    if (!terminal_ || (percent == shown_ && what == what_)) return;
    shown_ = percent;
    what_ = what;
    std::fprintf(stderr, "\r\x1b[K%s %s %d %%", what, name_.c_str(), percent);
    std::fflush(stderr);
  }

 private:
  std::string name_;
  bool terminal_;
  int shown_ = -1;
  const char* what_ = nullptr;
};

// The engine's error in the words of the command line.
Status Explain(const Status& status, const ModelFlags& flags) {
  if (status.code() == StatusCode::kOutOfMemory && !flags.cache.swap_space.empty() &&
      status.message().find("--swap-space") != std::string::npos) {
    return OutOfMemory(status.message() + ": " + FormatSize(FreeMemoryBytes()) +
                       " of memory are free beside the model and the KV pool");
  }
  return flags.kv.NameFlag(status);
}

}  // namespace

Status ModelFlags::Complete() {
  KVASIR_RETURN_IF_ERROR(ParsePrecision(precision).status());
  KVASIR_RETURN_IF_ERROR(threads.Plan().status());
  KVASIR_RETURN_IF_ERROR(kv.Validate());
  KVASIR_RETURN_IF_ERROR(cache.Apply(&engine));
  return engine.Validate();
}

void AddModelFlags(CLI::App* app, ModelFlags* flags) {
  app->add_option("MODEL,--model", flags->model, "a .gguf file (the first of its shards), or demo")
      ->required();
  AddThreadFlags(app, &flags->threads);
  app->add_option(
         "--precision", flags->precision,
         "fast (8-bit activations), default (8 bits, the model's outlier blocks in two terms), "
         "exact (two terms everywhere)")
      ->capture_default_str();
  app->add_option("--max-model-len", flags->engine.max_model_len,
                  "longest prompt + output in tokens (default: the model's context)")
      ->check(CLI::Range(1, 2'000'000'000));
  AddKvSizeFlags(app, &flags->kv);
  AddKvTypeFlags(app, &flags->kv);
  AddKvQualityFlag(app, &flags->kv);
  AddCacheFlags(app, &flags->cache, &flags->engine);
}

Result<std::unique_ptr<LoadedModel>> LoadedModel::Load(ModelFlags flags, StepObserver* observer) {
  KVASIR_RETURN_IF_ERROR(flags.Complete());
  StackOptions options;
  KVASIR_ASSIGN_OR_RETURN(options.model_path, ResolveModelPath(flags.model));
  KVASIR_ASSIGN_OR_RETURN(options.precision, ParsePrecision(flags.precision));
  KVASIR_ASSIGN_OR_RETURN(ThreadPlan threads, flags.threads.Plan());
  if (!threads.warning.empty()) spdlog::warn("{}", threads.warning);
  options.threads = threads.threads;
  options.cpus = std::move(threads.cpus);
  options.block_tokens = flags.kv.block_size;
  for (const std::string& notice : flags.kv.Notices()) spdlog::info("{}", notice);
  options.kv_type_k = flags.kv.type_k();
  options.kv_type_v = flags.kv.type_v();
  options.kv_quality = flags.kv.kv_quality;
  options.kv_blocks = flags.kv.kv_blocks;
  if (!flags.kv.kv_mem.empty()) {
    KVASIR_ASSIGN_OR_RETURN(options.kv_bytes, ParseSize(flags.kv.kv_mem, "--kv-mem"));
  }
  options.engine = flags.engine;

  std::unique_ptr<LoadedModel> loaded(new LoadedModel());
  loaded->name_ = flags.served_name.empty() ? ModelStem(options.model_path) : flags.served_name;
  {
    LoadLine line(loaded->name_);
    auto stack = CpuStack::Make(options, observer, [&line](const char* what, double fraction) {
      line.Show(what, fraction);
    });
    if (!stack.ok()) return Explain(stack.status(), flags);
    loaded->stack_ = std::move(stack).value();
  }
  for (const std::string& note : loaded->stack_->notes()) spdlog::info("{}", note);
  const GgufFile& file = loaded->stack_->model().file();
  KVASIR_ASSIGN_OR_RETURN(loaded->tokenizer_, MakeTokenizer(file));
  Result<std::unique_ptr<ChatTemplate>> chat_template = MakeChatTemplate(file, *loaded->tokenizer_);
  if (chat_template.ok()) {
    loaded->chat_template_ = std::move(chat_template).value();
  } else if (chat_template.status().code() == StatusCode::kInvalidArgument) {
    // The model still completes text; chat requests are refused with a clear message.
    spdlog::warn("{}: tokenizer.chat_template: {}; chat is off", options.model_path,
                 chat_template.status().message());
  } else {
    return chat_template.status();
  }
  const int32_t context = loaded->engine().info().max_model_len;
  loaded->wanted_model_len_ = flags.engine.max_model_len > 0
                                  ? flags.engine.max_model_len
                                  : loaded->stack_->model().config().context;
  if (flags.engine.max_model_len > context) {
    spdlog::warn("--max-model-len {} is cut to {}: the KV pool holds no more tokens (--kv-mem)",
                 flags.engine.max_model_len, context);
  }
  loaded->engine().Start();
  return loaded;
}

LoadedModel::~LoadedModel() {
  if (stack_ != nullptr) engine().Stop();
}

ServedModel LoadedModel::served() const {
  ServedModel served;
  served.name = name_;
  served.worker = &stack_->engine();
  served.tokenizer = tokenizer_.get();
  served.chat_template = chat_template_.get();
  served.clock = &clock_;
  served.wanted_model_len = wanted_model_len_;
  served.created_unix_s = static_cast<int64_t>(std::time(nullptr));
  return served;
}

std::string LoadedModel::Describe() const {
  const WorkerInfo& info = stack_->engine().info();
  const ModelConfig& config = stack_->model().config();
  const int64_t pool_tokens = info.pool_blocks * info.block_tokens;
  return "model " + name_ + " (" + config.architecture + ", " + std::to_string(config.layers) +
         " layers, " + FormatSize(stack_->model().weight_bytes()) + " of weights; " +
         FormatSize(HugePageBytes()) + " on huge pages), context " +
         std::to_string(info.max_model_len) + " tokens, precision " + info.precision + ", isa " +
         info.isa + ", " + std::to_string(info.threads) + " threads; KV pool " +
         std::to_string(pool_tokens) + " tokens, " + FormatSize(stack_->pool_bytes()) + ", " +
         std::to_string(info.pool_blocks) + " blocks of " + std::to_string(info.block_tokens) +
         ", K " + info.kv_type_k + ", V " + info.kv_type_v +
         (info.kv_verdict.empty() ? "" : " (" + info.kv_verdict + ")");
}

}  // namespace kvasir
