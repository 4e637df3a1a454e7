#include "certify/certifier.h"

#include <algorithm>
#include <cstdio>
#include <set>
#include <span>
#include <utility>

#include "base/hash.h"
#include "calibrate/own_text.h"
#include "certify/contest.h"
#include "certify/measure.h"
#include "certify/plan.h"
#include "env/machine.h"

namespace kvasir {
namespace {

using nlohmann::json;

constexpr int kWorkVersion = kCertifyMethod;
constexpr int kBlockTokens = 16;
constexpr int32_t kLeastLen = 128;
constexpr double kWriteCost = 2.5;  // of a token of own text, in rows

std::string TextName(const CertifyOptions& options) {
  if (options.text.empty()) return "own";
  char name[32];
  const uint64_t hash = Hash64(std::as_bytes(std::span(options.text)),
                               static_cast<uint64_t>(static_cast<int64_t>(options.bos)));
  std::snprintf(name, sizeof(name), "file %016llx", static_cast<unsigned long long>(hash));
  return name;
}

bool IsTexts(const json& list, int32_t vocab) {
  if (!list.is_array() || list.empty()) return false;
  return std::all_of(list.begin(), list.end(), [&](const json& text) {
    return text.is_array() && !text.empty() &&
           std::all_of(text.begin(), text.end(), [&](const json& token) {
             return token.is_number_unsigned() &&
                    token.get<uint64_t>() < static_cast<uint64_t>(vocab);
           });
  });
}

bool FitsPlan(const CertifyPlan& plan, const json& texts, const json& prompts) {
  if (texts.size() != plan.text_tokens.size()) return false;
  for (size_t i = 0; i < texts.size(); ++i) {
    if (texts[i].size() != static_cast<size_t>(plan.text_tokens[i])) return false;
  }
  return prompts.size() == static_cast<size_t>(plan.prompts) &&
         std::all_of(prompts.begin(), prompts.end(), [&](const json& prompt) {
           return prompt.size() == static_cast<size_t>(plan.prompt_tokens);
         });
}

}  // namespace

// One run.
struct Certifier::State {
  const Model& model;
  const CertifyOptions& options;
  MeasureContext context;
  CertifyPlan plan;
  CertifyTexts texts;
  std::vector<Contender> contenders;  // the formats, then the control
  std::vector<int32_t> pool;          // of tokens for retrieval
  Sidecar* work;
  std::vector<std::string>* notes;
  double total = 0, done = 0, resumed = 0;  // cost
  bool warned = false;

  void Report(const std::string& part, double cost) const {
    if (!options.progress || total <= 0) return;
    options.progress({std::min(1.0, (done + cost) / total), resumed / total, part});
  }
  void Keep(const std::string& section, json data) {
    const Status stored = work->Store(section, kWorkVersion, std::move(data));
    if (stored.ok() || warned) return;
    warned = true;
    notes->push_back("parts of this run cannot be kept, a stop loses them: " + stored.message());
  }

  Status FindTexts();
  Status WriteTexts();
  std::string SectionOf(const Part& part, const Contender& contender) const {
    return part.name + " " + contender.name + " " + VersionText(contender.format);
  }
  bool Known(const Part& part, const Contender& contender) const;
  double PartCost(const Part& part) const {
    return part.cost * static_cast<double>(1 + contenders.size());
  }
  Status RunPart(const Part& part);
  size_t GroupSize(const Part& part, size_t missing) const;
  PartResults Measure(const Part& part, std::span<const Contender> some) const;
  Result<Measures> Collect(const Contender& contender) const;
};

Status Certifier::State::WriteTexts() {
  double written = 0;
  const auto write = [&](int sequences, int32_t tokens, uint64_t seed) {
    OwnTextOptions own;
    own.sequences = sequences;
    own.tokens = tokens;
    own.seed = seed;
    own.precision = options.forward.precision;
    own.stop = options.stop;
    const double cost = kWriteCost * sequences * tokens;
    auto result = WriteOwnText(model, own, context.executor, [&](double fraction) {
      Report("writing text", written + fraction * cost);
    });
    written += cost;
    return result;
  };
  const std::vector<int32_t>& lengths = plan.text_tokens;
  for (size_t first = 0; first < lengths.size();) {
    size_t end = first;
    while (end < lengths.size() && lengths[end] == lengths[first]) ++end;
    // Each length has texts of its own.
    KVASIR_ASSIGN_OR_RETURN(auto some, write(static_cast<int>(end - first), lengths[first],
                                             CounterRandom(options.seed, 1, first)));
    for (auto& text : some) texts.texts.push_back(std::move(text));
    first = end;
  }
  KVASIR_ASSIGN_OR_RETURN(
      texts.prompts, write(plan.prompts, plan.prompt_tokens, CounterRandom(options.seed, 2, 0)));
  return Status::Ok();
}

Status Certifier::State::FindTexts() {
  if (!options.text.empty()) {
    KVASIR_ASSIGN_OR_RETURN(texts, CutTexts(plan, options.text, options.bos));
  } else {
    const int32_t vocab = model.config().vocab;
    const json* kept = work->Find("texts", kWorkVersion);
    const bool usable = kept != nullptr && kept->is_object() && kept->contains("texts") &&
                        kept->contains("prompts") && IsTexts((*kept)["texts"], vocab) &&
                        IsTexts((*kept)["prompts"], vocab) &&
                        FitsPlan(plan, (*kept)["texts"], (*kept)["prompts"]);
    double cost = kWriteCost * plan.prompts * plan.prompt_tokens;
    for (const int32_t length : plan.text_tokens) cost += kWriteCost * length;
    if (usable) {
      texts.texts = (*kept)["texts"].get<std::vector<Tokens>>();
      texts.prompts = (*kept)["prompts"].get<std::vector<Tokens>>();
      resumed += cost;
    } else {
      KVASIR_RETURN_IF_ERROR(WriteTexts());
      Keep("texts", {{"texts", texts.texts}, {"prompts", texts.prompts}});
    }
    done += cost;
  }
  std::set<int32_t> seen;
  for (const Tokens& text : texts.texts) seen.insert(text.begin(), text.end());
  if (seen.size() < 64) {
    for (int32_t token = 0; token < model.config().vocab; ++token) seen.insert(token);
  }
  pool.assign(seen.begin(), seen.end());
  return Status::Ok();
}

bool Certifier::State::Known(const Part& part, const Contender& contender) const {
  const json* kept = work->Find(SectionOf(part, contender), kWorkVersion);
  return kept != nullptr && PartResultFromJson(*kept).ok();
}

// How many contenders run beside the base at once: what half of free memory holds.
size_t Certifier::State::GroupSize(const Part& part, size_t missing) const {
  const ContestShape shape{part.sequences, 1, part.positions};
  const uint64_t free_bytes = FreeMemoryBytes() / 2;
  uint64_t bytes = Contest::CacheBytes(model, options.base, shape);
  uint64_t each = 1;  // of the widest contender
  for (const Contender& contender : contenders) {
    each = std::max(each, Contest::CacheBytes(model, contender.format, shape));
  }
  size_t count = 0;
  while (count < missing && bytes + each <= free_bytes) {
    bytes += each;
    ++count;
  }
  return std::max<size_t>(1, count);
}

PartResults Certifier::State::Measure(const Part& part, std::span<const Contender> some) const {
  std::vector<Tokens> read;
  switch (part.kind) {
    case PartKind::kPrefill:
      return MeasurePrefill(context, some, texts.texts[static_cast<size_t>(part.texts[0])],
                            part.texts[0]);
    case PartKind::kDecode:
      for (const int i : part.texts) read.push_back(texts.texts[static_cast<size_t>(i)]);
      return MeasureDecode(context, some, read, part.texts);
    case PartKind::kGreedy:
      for (const int i : part.texts) read.push_back(texts.prompts[static_cast<size_t>(i)]);
      return MeasureGreedy(context, some, read, plan.greedy_tokens);
    case PartKind::kRepeat:
      return MeasureRepeat(context, some, pool, texts.texts[0][0], part.distance, part.seed);
    case PartKind::kNeedles:
      break;
  }
  Tokens text = texts.texts[0];
  text.resize(static_cast<size_t>(part.distance));
  return MeasureNeedles(context, some, std::move(text), pool, part.seed);
}

Status Certifier::State::RunPart(const Part& part) {
  std::vector<Contender> missing;
  for (const Contender& contender : contenders) {
    if (!Known(part, contender)) missing.push_back(contender);
  }
  const double cost = PartCost(part);
  resumed += cost * static_cast<double>(contenders.size() - missing.size()) /
             static_cast<double>(contenders.size());
  double before = cost * static_cast<double>(contenders.size() - missing.size()) /
                  static_cast<double>(contenders.size());
  for (size_t first = 0; first < missing.size();) {
    const size_t left = missing.size() - first;
    const size_t count = std::min(left, GroupSize(part, left));
    const auto some = std::span<const Contender>(missing).subspan(first, count);
    const double share = cost * static_cast<double>(count) / static_cast<double>(contenders.size());
    context.progress = [&](double fraction) { Report(part.name, before + fraction * share); };
    PartResults results = Measure(part, some);
    context.progress = {};
    if (!results.ok()) return results.status();
    for (size_t i = 0; i < count; ++i) {
      Keep(SectionOf(part, some[i]), PartResultToJson((*results)[i]));
    }
    first += count;
    before += share;
  }
  done += cost;
  Report(part.name, 0);
  return Status::Ok();
}

Result<Measures> Certifier::State::Collect(const Contender& contender) const {
  std::vector<MeasuredPart> measured;
  for (const Part& part : plan.parts) {
    MeasuredPart entry;
    if (part.kind == PartKind::kPrefill) entry.mode = MeasuredPart::Mode::kPrefill;
    if (part.kind == PartKind::kDecode) entry.mode = MeasuredPart::Mode::kDecode;
    const json* kept = work->Find(SectionOf(part, contender), kWorkVersion);
    if (kept == nullptr) return Internal("the result of " + part.name + " is gone");
    KVASIR_ASSIGN_OR_RETURN(entry.result, PartResultFromJson(*kept));
    measured.push_back(std::move(entry));
  }
  return SumUp(measured, plan.text_tokens[0], plan.greedy_tokens);
}

Result<Certifier> Certifier::Make(const Model& model, const CertifyOptions& options,
                                  Executor& executor) {
  const int32_t context = model.config().context;
  Certifier certifier(model, options, executor);
  CertifyOptions& own = certifier.options_;
  if (own.max_len == 0) own.max_len = own.quick ? std::min(context, kQuickTokens) : context;
  const int32_t least = std::min(kLeastLen, context);
  if (own.max_len < least || own.max_len > context) {
    return InvalidArgument("--max-len " + std::to_string(own.max_len) + ": must be " +
                               std::to_string(least) + " to " + std::to_string(context) +
                               ", the model's context",
                           "max-len");
  }
  if (own.formats.empty()) return InvalidArgument("no KV format to certify", "kv-type");
  std::vector<CacheFormat> all = own.formats;
  all.push_back(own.base);
  for (const CacheFormat& format : all) {
    KVASIR_RETURN_IF_ERROR(MakeKvLayout(model.config(), format, kBlockTokens).status());
  }
  for (const int32_t token : own.text) {
    if (token < 0 || token >= model.config().vocab) {
      return InvalidArgument(
          "--text: token id " + std::to_string(token) + " is outside the vocabulary", "text");
    }
  }
  if (!own.text.empty() && own.text.size() < kTextTokens) {
    return CutTexts(MakePlan(own.max_len, own.quick, own.seed), own.text, own.bos).status();
  }
  certifier.settings_ = {std::string(PrecisionName(own.forward.precision)),
                         CacheFormatName(own.base),
                         TextName(own),
                         own.max_len,
                         own.seed,
                         own.quick};
  return certifier;
}

Sidecar Certifier::WorkFile(const std::string& model_path) const {
  const json settings = {settings_.precision, settings_.base,  settings_.text, settings_.max_len,
                         settings_.seed,      settings_.quick, kCertifyMethod};
  const std::string key = settings.dump();
  std::string stem = model_path;
  if (stem.ends_with(".gguf")) stem.resize(stem.size() - 5);
  const uint64_t hash =
      Hash64(std::as_bytes(std::span(key.data(), key.size())), model_->fingerprint());
  char name[32];  // other settings have a file of their own: neither run ends the other's
  std::snprintf(name, sizeof(name), ".certify-%08x", static_cast<unsigned>(hash & 0xFFFFFFFFu));
  return {stem + name + ".gguf", hash};
}

Result<std::vector<Certificate>> Certifier::Run(Sidecar* work, std::vector<std::string>* notes) {
  State state{*model_,
              options_,
              {*model_, options_.forward, options_.base, *executor_, options_.stop, {}},
              MakePlan(options_.max_len, options_.quick, options_.seed),
              {},
              {},
              {},
              work,
              notes};
  for (const CacheFormat& format : options_.formats) {
    const Contender contender = Contender::Of(format);
    const bool twice =
        std::any_of(state.contenders.begin(), state.contenders.end(),
                    [&](const Contender& other) { return other.name == contender.name; });
    if (!twice) state.contenders.push_back(contender);
  }
  state.contenders.push_back(Contender::Control());
  for (const Part& part : state.plan.parts) state.total += state.PartCost(part);
  if (options_.text.empty()) {
    state.total += kWriteCost * state.plan.prompts * state.plan.prompt_tokens;
    for (const int32_t length : state.plan.text_tokens) state.total += kWriteCost * length;
  }
  KVASIR_RETURN_IF_ERROR(state.FindTexts());
  if (!options_.text.empty()) {
    // The file may hold less than was planned.
    state.plan.text_tokens.clear();
    for (const Tokens& text : state.texts.texts) {
      state.plan.text_tokens.push_back(static_cast<int32_t>(text.size()));
    }
    state.plan.parts = PartsFor(state.plan.text_tokens, state.plan, options_.quick, options_.seed);
    state.total = 0;
    for (const Part& part : state.plan.parts) state.total += state.PartCost(part);
  }
  for (const Part& part : state.plan.parts) KVASIR_RETURN_IF_ERROR(state.RunPart(part));

  KVASIR_ASSIGN_OR_RETURN(const Measures control, state.Collect(state.contenders.back()));
  std::vector<Certificate> certificates;
  for (size_t i = 0; i + 1 < state.contenders.size(); ++i) {
    const Contender& contender = state.contenders[i];
    Certificate certificate;
    certificate.format = contender.format;
    KVASIR_ASSIGN_OR_RETURN(const KvLayout layout,
                            MakeKvLayout(model_->config(), contender.format, kBlockTokens));
    certificate.bytes_per_token = layout.bytes_per_token();
    certificate.settings = settings_;
    certificate.settings.max_len = state.plan.text_tokens[0];
    KVASIR_ASSIGN_OR_RETURN(certificate.measures, state.Collect(contender));
    certificate.control_mean = control.prefill.mean;
    certificate.control_top1 = control.prefill.top1;
    certificate.control_failed = !BestQuality(control).has_value();
    certificates.push_back(std::move(certificate));
  }
  return certificates;
}

}  // namespace kvasir
