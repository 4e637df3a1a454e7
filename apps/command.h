// The commands of the `kvasir` program and what they share: exit codes and how failures are shown.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "base/status.h"

namespace kvasir {

// The contract of docs/cli.md.
enum ExitCode : int {
  kExitOk = 0,
  kExitFailure = 1,  // at run time
  kExitUsage = 2,    // a flag or its value
  kExitModel = 3,    // the model file cannot be read
  kExitMemory = 4,   // not enough memory for what was asked
};

// Each takes the arguments after its name and returns an exit code.
int ServeCommand(int argc, const char* const* argv);
int ChatCommand(int argc, const char* const* argv);
int BenchCommand(int argc, const char* const* argv);
int CertifyCommand(int argc, const char* const* argv);
int InspectCommand(int argc, const char* const* argv);
int VersionCommand(int argc, const char* const* argv);

ExitCode ExitCodeOf(const Status& status);

// One line on standard error; returns the exit code.
int Fail(const Status& status);

// At the end of a command that prints a report: if standard output did not take all of it, one line
// on standard error and kExitFailure instead of kExitOk.
int FinishOutput(int exit_code);

// Parses into the app. False: return *exit_code (help was shown, or the usage was wrong).
bool ParseFlags(CLI::App* app, int argc, const char* const* argv, int* exit_code);

// Adds --config FILE (TOML): the same names as the flags, command line wins, unknown names are
// refused.
void AddConfigFlag(CLI::App* app);

}  // namespace kvasir
