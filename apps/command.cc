#include "apps/command.h"

#include <cstring>
#include <iostream>
#include <string>

namespace kvasir {
namespace {

// The library's words for an unknown name in a --config file are put in ours.
std::string Explain(const std::exception& error) {
  std::string what = error.what();
  constexpr const char* kUnknownKey = "INI was not able to parse ";
  if (what.starts_with(kUnknownKey)) {
    what = "--config: unknown name " + what.substr(std::strlen(kUnknownKey));
  }
  return what;
}

}  // namespace

ExitCode ExitCodeOf(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return kExitOk;
    case StatusCode::kInvalidArgument:
      return kExitUsage;
    case StatusCode::kNotFound:
    case StatusCode::kDataLoss:
    case StatusCode::kUnimplemented:
      return kExitModel;
    case StatusCode::kOutOfMemory:
      return kExitMemory;
    default:
      return kExitFailure;
  }
}

int Fail(const Status& status) {
  std::cerr << "kvasir: " << status.message() << std::endl;
  return ExitCodeOf(status);
}

int FinishOutput(int exit_code) {
  std::cout.flush();
  if (std::cout) return exit_code;
  std::cerr << "kvasir: standard output could not be written in full" << std::endl;
  return exit_code == kExitOk ? kExitFailure : exit_code;
}

bool ParseFlags(CLI::App* app, int argc, const char* const* argv, int* exit_code) {
  try {
    app->parse(argc, argv);
    return true;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // --help
      app->exit(error, std::cout, std::cerr);
      *exit_code = FinishOutput(kExitOk);
      return false;
    }
    const std::string what = Explain(error);
    std::cerr << app->get_name() << ": " << what << "\nSee " << app->get_name() << " --help"
              << std::endl;
  } catch (const std::exception& error) {
    const std::string what = Explain(error);
    std::cerr << app->get_name() << ": " << what << std::endl;
  }
  *exit_code = kExitUsage;
  return false;
}

void AddConfigFlag(CLI::App* app) {
  app->set_config("--config", "",
                  "file with these flags in TOML (port = 8080); the command line wins");
  app->allow_config_extras(CLI::config_extras_mode::error);
}

}  // namespace kvasir
