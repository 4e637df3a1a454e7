#include "model/model_config.h"

#include <cmath>
#include <iterator>

#include "model/gguf_text.h"
#include "model/llama_config.h"
#include "model/model.h"

namespace kvasir {
namespace {

// One row per architecture: its name in general.architecture and the function that reads and checks
// its keys and tensors.
struct Architecture {
  const char* name;
  Result<ModelConfig> (*read)(const GgufFile& file);
};
constexpr Architecture kArchitectures[] = {
    {"llama", internal::ReadLlamaConfig},
};

std::string ServedList() {
  std::string list;
  for (const Architecture& row : kArchitectures)
    list += (list.empty() ? "" : ", ") + std::string(row.name);
  return list;
}

}  // namespace

std::vector<double> ModelConfig::RopeSteps() const {
  std::vector<double> steps(static_cast<size_t>(rope_dims / 2));
  for (size_t i = 0; i < steps.size(); ++i) {
    steps[i] = std::pow(rope_base, -2.0 * static_cast<double>(i) / rope_dims) / rope_factor;
    if (!rope_divisors.empty()) steps[i] /= static_cast<double>(rope_divisors[i]);
  }
  return steps;
}

Result<ModelConfig> ReadModelConfig(const GgufFile& file) {
  KVASIR_ASSIGN_OR_RETURN(const auto type, file.String("general.type"));
  if (type && *type != "model") {
    return Unimplemented(file.Complaint(
        "general.type", "'" + internal::Printable(*type) + "' is not served (served: model)"));
  }
  KVASIR_ASSIGN_OR_RETURN(const auto architecture, file.String("general.architecture"));
  if (!architecture) return DataLoss(file.Complaint("general.architecture", "the key is missing"));
  for (const Architecture& row : kArchitectures) {
    if (*architecture != row.name) continue;
    KVASIR_ASSIGN_OR_RETURN(ModelConfig config, row.read(file));
    KVASIR_ASSIGN_OR_RETURN(const auto name, file.String("general.name"));
    config.architecture = row.name;
    config.name = name.value_or("");
    return config;
  }
  return Unimplemented(file.Complaint(
      "general.architecture",
      "'" + internal::Printable(*architecture) + "' is not served (served: " + ServedList() + ")"));
}

}  // namespace kvasir
