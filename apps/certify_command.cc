// kvasir certify MODEL
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "apps/certify_report.h"
#include "apps/command.h"
#include "apps/files.h"
#include "apps/flag_values.h"
#include "apps/model_path.h"
#include "calibrate/calibration.h"
#include "certify/certifier.h"
#include "certify/certify_lock.h"
#include "env/machine.h"
#include "env/thread_pool.h"
#include "server/tokenizer_from_gguf.h"

namespace kvasir {
namespace {

struct CertifyFlags {
  std::string model;
  std::vector<std::string> kv_types;
  std::string base = "f16", precision = "exact";
  std::string text_path, svg_path;
  std::string text;  // what text_path holds
  int32_t max_len = 0, threads = 0;
  uint64_t seed = 1;
  bool quick = false, json = false;
};

void AddFlags(CLI::App* app, CertifyFlags* flags) {
  app->add_option("MODEL,--model", flags->model, "a .gguf file (the first of its shards), or demo")
      ->required();
  app->add_option("--kv-type", flags->kv_types,
                  "format of K and V to judge, or K/V as i8/i4; may be repeated (default: the "
                  "small ones that are served)");
  app->add_option("--base", flags->base, "format they are compared with: f16 or f32")
      ->check(CLI::IsMember({"f16", "f32"}))
      ->capture_default_str();
  app->add_option("--precision", flags->precision,
                  "of the rest of the model: exact (only the cache differs from an ideal run), "
                  "default or fast (as served)")
      ->check(CLI::IsMember({"exact", "default", "fast"}))
      ->capture_default_str();
  app->add_option("--max-len", flags->max_len,
                  "tokens of the longest text (default: the model's context; quick: 1024)")
      ->check(CLI::Range(1, 2'000'000'000));
  app->add_flag("--quick", flags->quick, "shorter texts: minutes instead of an hour");
  app->add_option("--text", flags->text_path,
                  "a text file to read instead of what the model writes itself; at most 1 GiB")
      ->check(NotEmpty());
  app->add_option("--seed", flags->seed, "of the model's own text and of the retrieval questions")
      ->check(SeedRange())
      ->capture_default_str();
  app->add_option("--threads", flags->threads,
                  "compute threads (default: the physical cores allowed)")
      ->check(CLI::Range(1, 1024));
  app->add_flag("--json", flags->json, "print the certificates as JSON");
  app->add_option("--svg", flags->svg_path, "write plots of divergence by position to this file")
      ->check(NotEmpty());
  AddConfigFlag(app);
}

// The first SIGINT or SIGTERM asks for a clean end, the second ends the process.
std::atomic<bool> stop_asked{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void OnSignal(int /*signal*/) {
  if (stop_asked.exchange(true)) _exit(kExitFailure);
}

void CatchSignals() {
  struct sigaction action {};
  action.sa_handler = OnSignal;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

std::string Duration(double seconds) {
  char text[48];
  if (seconds < 90) {
    std::snprintf(text, sizeof(text), "%.0f s", seconds);
  } else if (seconds < 5400) {
    std::snprintf(text, sizeof(text), "%.0f min", seconds / 60);
  } else {
    std::snprintf(text, sizeof(text), "%.1f h", seconds / 3600);
  }
  return text;
}

// A bar on a terminal; elsewhere a line for each part that begins.
class ProgressLine {
 public:
  ProgressLine() : terminal_(isatty(STDERR_FILENO) != 0) {}
  ~ProgressLine() { Clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void Show(const CertifyProgress& progress) {
    const auto now = std::chrono::steady_clock::now();
    const double shown_s = std::chrono::duration<double>(now - shown_).count();
    if (terminal_ ? shown_s < 0.2 : progress.part == part_) return;
    shown_ = now;
    part_ = progress.part;
    const double done = progress.fraction - progress.resumed;
    const double elapsed_s = std::chrono::duration<double>(now - start_).count();
    // The first moments tell nothing.
    const std::string left =
        done > 0.002 && elapsed_s > 3
            ? ", " + Duration(elapsed_s * (1 - progress.fraction) / done) + " left"
            : "";
    constexpr int kCells = 24;
    const int full = static_cast<int>(progress.fraction * kCells);
    const std::string bar = std::string(static_cast<size_t>(full), '#') +
                            std::string(static_cast<size_t>(kCells - full), '.');
    std::fprintf(stderr, "%s[%s] %3.0f %%%s  %s%s", terminal_ ? "\r\x1b[K" : "", bar.c_str(),
                 progress.fraction * 100, left.c_str(), progress.part.c_str(),
                 terminal_ ? "" : "\n");
    std::fflush(stderr);
  }
  void Clear() {
    if (terminal_) std::fprintf(stderr, "\r\x1b[K");
  }

 private:
  bool terminal_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now(), shown_;
  std::string part_;
};

Precision PrecisionOf(const std::string& name) {
  if (name == "fast") return Precision::kFast;
  if (name == "default") return Precision::kDefault;
  return Precision::kExact;
}

// The files that flags name, before anything that takes long.
Status CheckFiles(CertifyFlags* flags) {
  if (!flags->svg_path.empty()) KVASIR_RETURN_IF_ERROR(CheckWritable(flags->svg_path, "--svg"));
  if (flags->text_path.empty()) return Status::Ok();
  KVASIR_ASSIGN_OR_RETURN(flags->text, ReadInputFile(flags->text_path, "--text"));
  return Status::Ok();
}

Status TokenizeText(const CertifyFlags& flags, const Model& model, CertifyOptions* options) {
  if (flags.text_path.empty()) return Status::Ok();
  KVASIR_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, MakeTokenizer(model.file()));
  const auto tokens = tokenizer->Encode(flags.text, SpecialText::kPlain, false);
  if (!tokens.ok()) {
    return InvalidArgument("--text " + flags.text_path + ": " + tokens.status().message(), "text");
  }
  options->text.assign(tokens->begin(), tokens->end());
  if (options->text.empty()) {
    return InvalidArgument("--text " + flags.text_path + ": the file is empty", "text");
  }
  if (tokenizer->add_bos()) options->bos = tokenizer->bos();
  return Status::Ok();
}

Result<CertifyOptions> OptionsOf(const CertifyFlags& flags, const Model& model, Sidecar* sidecar,
                                 Executor& executor, std::vector<std::string>* notes) {
  CertifyOptions options;
  KVASIR_ASSIGN_OR_RETURN(options.base, ParseCacheFormat(flags.base, "--base"));
  for (const std::string& name : flags.kv_types) {
    KVASIR_ASSIGN_OR_RETURN(const CacheFormat& format, ParseCacheFormat(name, "--kv-type"));
    if (format == options.base) {
      return InvalidArgument("--kv-type " + name + ": is what it would be compared with (--base " +
                                 flags.base + "): nothing to certify",
                             "kv-type");
    }
    const Status served = MakeKvLayout(model.config(), format, 16).status();
    if (!served.ok()) return InvalidArgument("--kv-type " + name + ": " + served.message());
    options.formats.push_back(format);
  }
  if (options.formats.empty()) options.formats = FormatsWorthHaving(model.config());
  options.forward.precision = PrecisionOf(flags.precision);
  CalibrationWish wish;
  wish.two_terms = options.forward.precision == Precision::kDefault;
  wish.keys = true;
  KVASIR_ASSIGN_OR_RETURN(Calibration calibration,
                          LoadCalibration(model, wish, sidecar, executor, {}, notes));
  options.forward.two_terms = std::move(calibration.two_terms);
  options.forward.keys = std::move(calibration.keys);
  options.max_len = flags.max_len;
  options.quick = flags.quick;
  options.seed = flags.seed;
  options.stop = &stop_asked;
  KVASIR_RETURN_IF_ERROR(TokenizeText(flags, model, &options));
  return options;
}

Status WriteSvg(const std::string& path, const CertifyReport& report) {
  if (path.empty()) return Status::Ok();
  std::ofstream file(path);
  file << CertifySvg(report);
  file.close();
  return file ? Status::Ok() : Unavailable("cannot write " + path);
}

// The work file has done its duty.
void Remove(const Sidecar& work) {
  std::error_code ignored;
  if (!work.path().empty()) std::filesystem::remove(work.path(), ignored);
}

void PrintNotes(const std::vector<std::string>& notes) {
  for (const std::string& note : notes) std::cerr << "kvasir: " << note << std::endl;
}

// *stored: did the certificates reach their file.
Result<std::vector<Certificate>> Measure(const CertifyFlags& flags, const std::string& path,
                                         const Model& model, Executor& executor,
                                         std::vector<std::string>* notes, bool* stored) {
  Sidecar sidecar(path, model.fingerprint());
  KVASIR_ASSIGN_OR_RETURN(CertifyOptions options,
                          OptionsOf(flags, model, &sidecar, executor, notes));
  ProgressLine line;
  options.progress = [&line](const CertifyProgress& progress) { line.Show(progress); };
  KVASIR_ASSIGN_OR_RETURN(Certifier certifier, Certifier::Make(model, options, executor));
  Sidecar work = certifier.WorkFile(path);
  Result<std::vector<Certificate>> certificates = certifier.Run(&work, notes);
  if (certificates.status().code() == StatusCode::kCancelled) {
    return Status(StatusCode::kCancelled,
                  work.path().empty() ? "stopped; nothing was finished yet"
                                      : "stopped; what is finished is kept in " + work.path() +
                                            ", the same command goes on from there");
  }
  if (!certificates.ok()) return certificates.status();
  const Status store = StoreCertificates(*certificates, &sidecar);
  *stored = store.ok();
  if (!store.ok()) {
    notes->push_back("the certificates could not be stored: " + store.message());
  } else {
    notes->push_back("certificates stored in " + sidecar.path());
    Remove(work);
  }
  return certificates;
}

int Certify(const CertifyFlags& flags) {
  const Result<std::string> path = ResolveModelPath(flags.model);
  if (!path.ok()) return Fail(path.status());
  const Result<CertifyLock> lock = CertifyLock::Take(*path);
  if (!lock.ok()) return Fail(lock.status());
  CatchSignals();
  ThreadPool executor(flags.threads > 0 ? flags.threads : PhysicalCores());
  const Result<std::unique_ptr<Model>> model = Model::Load(*path, executor);
  if (!model.ok()) return Fail(model.status());
  std::vector<std::string> notes;
  bool stored = false;
  const Result<std::vector<Certificate>> certificates =
      Measure(flags, *path, **model, executor, &notes, &stored);
  PrintNotes(notes);
  if (!certificates.ok()) return Fail(certificates.status());
  CertifyReport report;
  report.model = ModelStem(*path);
  report.fingerprint = (*model)->fingerprint();
  report.f16_bytes_per_token = MakeKvLayout((*model)->config(), {}, 16)->bytes_per_token();
  report.certificates = *certificates;
  if (flags.json) {
    std::cout << CertifyJson(report).dump(1) << std::endl;
  } else {
    std::cout << CertifyTable(report) << std::flush;
  }
  if (const Status written = WriteSvg(flags.svg_path, report); !written.ok()) return Fail(written);
  return FinishOutput((*certificates)[0].control_failed && stored ? kExitOk : kExitFailure);
}

}  // namespace

int CertifyCommand(int argc, const char* const* argv) {
  CLI::App app(
      "What smaller cache formats do to a model: KL divergence, greedy texts and retrieval against "
      "the same weights with\na 16-bit cache, a verdict for each, and a certificate beside the "
      "model that --kv-type auto reads. Ctrl-C keeps what is\nfinished, and the same command goes "
      "on from there. Exit code 1 also if the negative control passes or the certificates cannot "
      "be stored.",
      "kvasir certify");
  app.footer(
      "Examples:\n  kvasir certify demo --quick\n"
      "  kvasir certify model.gguf --kv-type i8 --kv-type i8/i4 --max-len 8192 --svg kv.svg\n"
      "  kvasir certify model.gguf --text book.txt --precision default --json > kv.json");
  CertifyFlags flags;
  AddFlags(&app, &flags);
  int exit_code = 0;
  if (!ParseFlags(&app, argc, argv, &exit_code)) return exit_code;
  if (const Status files = CheckFiles(&flags); !files.ok()) return Fail(files);
  return Certify(flags);
}

}  // namespace kvasir
