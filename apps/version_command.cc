// kvasir version
#include <iostream>
#include <nlohmann/json.hpp>

#include "apps/command.h"
#include "env/machine.h"
#include "kernels/isa.h"
#include "quant/kv_format.h"
#include "quant/weight_type.h"

namespace kvasir {
namespace {

constexpr const char* kCompiler =
#if defined(__clang__)
    "clang " __clang_version__;
#else
    "g++ " __VERSION__;
#endif

std::vector<std::string> SupportedIsas() {
  std::vector<std::string> names;
  for (const Isa isa : kAllIsas) {
    if (IsaSupported(isa)) names.emplace_back(IsaName(isa));
  }
  return names;
}

}  // namespace

int VersionCommand(int argc, const char* const* argv) {
  CLI::App app("Version, instruction sets and compiler.", "kvasir version");
  app.footer("Example:\n  kvasir version --json");
  bool json = false;
  app.add_flag("--json", json, "as JSON");
  int exit_code = 0;
  if (!ParseFlags(&app, argc, argv, &exit_code)) return exit_code;
  const std::vector<std::string> isas = SupportedIsas();
  if (json) {
    const nlohmann::ordered_json out = {{"version", KVASIR_VERSION},
                                        {"isa", IsaName(CurrentIsa())},
                                        {"isa_supported", isas},
                                        {"compiler", kCompiler},
                                        {"cpu", CpuModelName()},
                                        {"cores", PhysicalCores()},
                                        {"weight_types", WeightTypesServedList()},
                                        {"kv_types", KvTypesServedList()}};
    std::cout << out.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)
              << std::endl;
    return FinishOutput(kExitOk);
  }
  std::cout << "kvasir " KVASIR_VERSION "\nisa        " << IsaName(CurrentIsa())
            << " (supported here:";
  for (const std::string& name : isas) std::cout << " " << name;
  std::cout << ")\ncompiler   " << kCompiler << "\ncpu        " << CpuModelName() << ", "
            << PhysicalCores() << " cores for this process\nweights    " << WeightTypesServedList()
            << "\nKV cache   " << KvTypesServedList() << std::endl;
  return FinishOutput(kExitOk);
}

}  // namespace kvasir
