// Certify: measures cache formats against the same weights with a 16-bit (or 32-bit) cache, and
// says what each may be used for. docs/certify.md describes the measurement.
//
// Stoppable and resumable: after each part what it gave is stored in the work file; a later call
// with the same options goes on from there and ends with the same bytes. Not safe from two threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "base/status.h"
#include "calibrate/sidecar.h"
#include "certify/cache_format.h"
#include "certify/certificate.h"
#include "model/forward.h"
#include "model/model.h"

namespace kvasir {

struct CertifyProgress {
  double fraction = 0;  // of all the work, 0 to 1, growing
  double resumed = 0;   // fraction that an earlier run had done
  std::string part;     // "writing text", "prefill-0"
};

struct CertifyOptions {
  std::vector<CacheFormat> formats;
  CacheFormat base;
  ForwardOptions forward;  // precision and what it needs; the rest is set here
  int32_t max_len = 0;     // tokens of the longest text; 0: the model's context
  bool quick = false;      // shorter texts, an eighth of the work or less
  uint64_t seed = 1;
  std::vector<int32_t> text;  // tokens to read instead of what the model writes itself
  int32_t bos = -1;           // put before each piece of `text`; -1: nothing
  const std::atomic<bool>* stop = nullptr;
  std::function<void(const CertifyProgress&)> progress;
};

// Texts of quick runs end here unless max_len is given.
inline constexpr int32_t kQuickTokens = 1024;

class Certifier {
 public:
  // Checks the options against the model.
  static Result<Certifier> Make(const Model& model, const CertifyOptions& options,
                                Executor& executor);

  const CertifySettings& settings() const { return settings_; }
  // Where parts are kept: NAME.certify-<8 digits of all settings>.kvasir.json beside the model, or
  // in the cache folder. Tied to the model and to all settings.
  Sidecar WorkFile(const std::string& model_path) const;
  // One certificate for each format, in their order. kCancelled when stopped.
  Result<std::vector<Certificate>> Run(Sidecar* work, std::vector<std::string>* notes);

 private:
  Certifier(const Model& model, CertifyOptions options, Executor& executor)
      : model_(&model), options_(std::move(options)), executor_(&executor) {}
  struct State;

  const Model* model_;
  CertifyOptions options_;
  Executor* executor_;
  CertifySettings settings_;
};

}  // namespace kvasir
