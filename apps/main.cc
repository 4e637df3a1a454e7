// kvasir: the program. One file per command; this one only finds it by name.
#include <malloc.h>

#include <csignal>
#include <cstring>
#include <iostream>

#include "apps/command.h"
#include "kernels/isa.h"

namespace {

struct Command {
  const char* name;
  int (*run)(int argc, const char* const* argv);
  const char* summary;
};

constexpr Command kCommands[] = {
    {"serve", kvasir::ServeCommand, "OpenAI-compatible server for one model"},
    {"chat", kvasir::ChatCommand, "talk to a model in the terminal"},
    {"bench", kvasir::BenchCommand, "put load on any OpenAI-compatible server and measure"},
    {"certify", kvasir::CertifyCommand, "what smaller KV formats do to a model, and a certificate"},
    {"inspect", kvasir::InspectCommand, "what a model file holds and what its KV cache takes"},
    {"version", kvasir::VersionCommand, "version, instruction sets, compiler"},
};

void PrintHelp(std::ostream& out) {
  out << "kvasir: LLM serving built around a paged KV cache\n\nusage: kvasir COMMAND [flags]\n\n";
  for (const Command& command : kCommands) {
    out << "  " << command.name << std::string(10 - std::strlen(command.name), ' ')
        << command.summary << "\n";
  }
  out << "\nkvasir COMMAND --help shows the flags of a command and an example.\n"
         "Example: kvasir serve demo --port 8080\n";
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  // Large buffers go back to the system when they are freed, and threads share few heaps.
  mallopt(M_ARENA_MAX, 2);
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  if (argc < 2) {
    PrintHelp(std::cerr);
    return kvasir::kExitUsage;
  }
  if (const kvasir::Status isa = kvasir::CheckIsaEnvironment(); !isa.ok()) {
    std::cerr << "kvasir: " << isa.message() << std::endl;
    return kvasir::kExitUsage;
  }
  const std::string name = argv[1];
  if (name == "--help" || name == "-h" || name == "help") {
    PrintHelp(std::cout);
    return kvasir::kExitOk;
  }
  if (name == "--version") return kvasir::VersionCommand(1, argv);
  for (const Command& command : kCommands) {
    if (name == command.name) return command.run(argc - 1, argv + 1);
  }
  std::cerr << "kvasir: unknown command '" << name << "'; known are";
  for (const Command& command : kCommands) std::cerr << " " << command.name;
  std::cerr << std::endl;
  return kvasir::kExitUsage;
}
