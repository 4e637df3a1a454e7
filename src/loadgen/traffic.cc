#include "loadgen/traffic.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

namespace kvasir {
namespace {

constexpr int32_t kFirstToken = 300;  // below it, vocabularies keep bytes and control tokens

// Streams of the seed; what is drawn for request i is drawn at a place of its own.
constexpr uint64_t kSharedStream = 7, kHotPrefixStream = 9, kHotStream = 10, kInputStream = 11,
                   kOutputStream = 12, kTraceStream = 13, kRequestStream = 1'000'000,
                   kTurnStream = uint64_t{1} << 40;

std::vector<std::string_view> Fields(std::string_view line) {
  std::vector<std::string_view> fields;
  for (;;) {
    const size_t comma = line.find(',');
    fields.push_back(line.substr(0, comma));
    if (comma == std::string_view::npos) return fields;
    line.remove_prefix(comma + 1);
  }
}

// Reads digits only; false otherwise.
bool ReadLength(std::string_view text, int64_t* value) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size() && *value >= 0;
}

std::string_view NextLine(std::string_view* text) {
  const size_t end = text->find('\n');
  std::string_view line = text->substr(0, end);
  text->remove_prefix(end == std::string_view::npos ? text->size() : end + 1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

Status CheckRange(const char* flag, double value, double low, double high) {
  if (value >= low && value <= high) return Status::Ok();
  char text[160];
  std::snprintf(text, sizeof(text), "--%s %g: must be %g to %g", flag, value, low, high);
  return InvalidArgument(text, flag);
}

}  // namespace

PromptSource::PromptSource(const Target& target, const LoadShape& shape, uint64_t stream)
    : text_(target.text), vocab_(shape.vocab), rng_(CounterRandom(shape.seed, stream, 0)) {}

PromptUnits PromptSource::Draw(size_t count) {
  PromptUnits units(count);
  for (int32_t& unit : units) {
    unit = text_
               ? static_cast<int32_t>(rng_.Below(BenchWords().size()))
               : kFirstToken +
                     static_cast<int32_t>(rng_.Below(static_cast<uint64_t>(vocab_ - kFirstToken)));
  }
  return units;
}

PromptUnits Joined(const PromptUnits& first, const PromptUnits& second) {
  PromptUnits all = first;
  all.insert(all.end(), second.begin(), second.end());
  return all;
}

Result<LengthRange> ParseLengthRange(std::string_view text, const std::string& flag) {
  const size_t colon = text.find(':');
  int64_t low = 0, high = 0;
  const bool good =
      ReadLength(text.substr(0, colon), &low) &&
      ReadLength(colon == std::string_view::npos ? text : text.substr(colon + 1), &high) &&
      low >= 1 && low <= high && high <= LengthRange::kMost;
  if (!good) {
    return InvalidArgument("--" + flag + " '" + std::string(text) +
                               "': must be a number of tokens or LOW:HIGH, 1 to 10000000",
                           flag);
  }
  return LengthRange{static_cast<int32_t>(low), static_cast<int32_t>(high)};
}

Result<std::vector<TraceLengths>> ParseLengthTrace(std::string_view text, double scale) {
  const std::vector<std::string_view> names = Fields(NextLine(&text));
  const auto column = [&names](std::string_view name) {
    return static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
  };
  const size_t prompt_at = column("ContextTokens"), output_at = column("GeneratedTokens");
  if (std::max(prompt_at, output_at) >= names.size()) {
    return InvalidArgument(
        "--trace: the first line must name the columns ContextTokens and GeneratedTokens", "trace");
  }
  std::vector<TraceLengths> rows;
  for (int64_t number = 2; !text.empty(); ++number) {
    const std::string_view line = NextLine(&text);
    if (line.empty()) continue;
    const std::vector<std::string_view> fields = Fields(line);
    int64_t prompt = 0, output = 0;
    if (fields.size() != names.size() || !ReadLength(fields[prompt_at], &prompt) ||
        !ReadLength(fields[output_at], &output)) {
      return InvalidArgument("--trace: line " + std::to_string(number) + " is no row of lengths",
                             "trace");
    }
    if (prompt == 0 || output == 0) continue;
    const auto scaled = [scale](int64_t tokens) {
      const double value = std::round(static_cast<double>(tokens) * scale);
      return static_cast<int32_t>(std::clamp(value, 1.0, double{LengthRange::kMost}));
    };
    rows.push_back({scaled(prompt), scaled(output)});
  }
  if (rows.empty()) return InvalidArgument("--trace: no row of lengths in it", "trace");
  return rows;
}

Status TrafficOptions::Validate() const {
  KVASIR_RETURN_IF_ERROR(CheckRange("input-len", input.low, 1, LengthRange::kMost));
  KVASIR_RETURN_IF_ERROR(CheckRange("input-len", input.high, input.low, LengthRange::kMost));
  KVASIR_RETURN_IF_ERROR(CheckRange("output-len", output.low, 1, LengthRange::kMost));
  KVASIR_RETURN_IF_ERROR(CheckRange("output-len", output.high, output.low, LengthRange::kMost));
  KVASIR_RETURN_IF_ERROR(CheckRange("shared-len", shared_tokens, 0, input.low));
  KVASIR_RETURN_IF_ERROR(CheckRange("shared-prefix", prefix_tokens, 0, LengthRange::kMost));
  KVASIR_RETURN_IF_ERROR(CheckRange("hot-share", hot_share, 0, 1));
  if (hot_share < 1 && prefix_tokens == 0) {
    return InvalidArgument("--hot-share needs --shared-prefix", "hot-share");
  }
  if (!trace.empty() && shared_tokens > 0) {
    return InvalidArgument("--trace and --shared-len exclude each other; see --shared-prefix",
                           "shared-len");
  }
  KVASIR_RETURN_IF_ERROR(CheckRange("turns", turns, 1, 1000));
  KVASIR_RETURN_IF_ERROR(CheckRange("think", think_s, 0, 3600));
  return CheckRange("first-request", static_cast<double>(first_request), 0, 1e12);
}

Traffic::Traffic(const TrafficOptions& options, const Target& target, const LoadShape& shape)
    : options_(options), target_(target), shape_(shape) {
  PromptSource shared(target, shape, kSharedStream);
  shared_ = shared.Draw(static_cast<size_t>(options.shared_tokens));
  PromptSource hot(target, shape, kHotPrefixStream);
  hot_ = hot.Draw(static_cast<size_t>(options.prefix_tokens));
}

TraceLengths Traffic::Lengths(int64_t number, int32_t turn) const {
  const uint64_t at =
      static_cast<uint64_t>(number) + (turn == 0 ? 0 : kTurnStream * static_cast<uint64_t>(turn));
  if (!options_.trace.empty()) {
    const uint64_t row = CounterRandom(shape_.seed, kTraceStream, at) % options_.trace.size();
    return options_.trace[static_cast<size_t>(row)];
  }
  const auto draw = [&](const LengthRange& range, uint64_t stream) {
    const auto span = static_cast<uint64_t>(range.high - range.low) + 1;
    return range.low + static_cast<int32_t>(CounterRandom(shape_.seed, stream, at) % span);
  };
  return {draw(options_.input, kInputStream), draw(options_.output, kOutputStream)};
}

CompletionJob Traffic::First(int64_t index) const {
  const int64_t number = options_.first_request + index;
  const TraceLengths lengths = Lengths(number, 0);
  PromptSource source(target_, shape_, kRequestStream + static_cast<uint64_t>(number));
  CompletionJob job;
  job.hot =
      options_.prefix_tokens > 0 &&
      CounterUniform(shape_.seed, kHotStream, static_cast<uint64_t>(number)) < options_.hot_share;
  job.output_tokens = lengths.output;
  job.keep_answer = options_.turns > 1;
  if (options_.prefix_tokens > 0) job.prompt = job.hot ? hot_ : source.Draw(hot_.size());
  job.prompt.insert(job.prompt.end(), shared_.begin(), shared_.end());
  const size_t own = static_cast<size_t>(lengths.prompt) - shared_.size();
  job.prompt = Joined(job.prompt, source.Draw(own));
  return job;
}

CompletionJob Traffic::Next(int64_t index, int32_t turn, const CompletionJob& before,
                            const Outcome& answer) const {
  const int64_t number = options_.first_request + index;
  const TraceLengths lengths = Lengths(number, turn);
  PromptSource source(
      target_, shape_,
      kRequestStream + static_cast<uint64_t>(number) + kTurnStream * static_cast<uint64_t>(turn));
  CompletionJob job = before;
  job.output_tokens = lengths.output;
  job.keep_answer = turn + 1 < options_.turns;
  if (target_.text) {
    job.history = CompletionText(before) + answer.answer_text;
    job.prompt.clear();
  } else if (!answer.answer.empty()) {
    job.prompt = Joined(job.prompt, answer.answer);
  } else {
    job.prompt = Joined(job.prompt, source.Draw(answer.token_ns.size()));
  }
  job.prompt = Joined(job.prompt, source.Draw(static_cast<size_t>(lengths.prompt)));
  return job;
}

}  // namespace kvasir
