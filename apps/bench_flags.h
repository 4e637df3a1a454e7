// The flags of `kvasir bench`, and what they come to.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "base/status.h"
#include "loadgen/bench.h"
#include "loadgen/sweep.h"

namespace kvasir {

enum class BenchMode { kWorkloads, kSweep, kPlot };

struct BenchFlags {
  BenchOptions bench;  // with the closed and the open loop
  SweepOptions sweep;
  BenchMode mode = BenchMode::kWorkloads;
  std::string json_path;           // "-": standard output; "": none
  std::string svg_path;            // "": none
  std::vector<std::string> plot;   // reports to draw
  std::vector<std::string> label;  // of the sweep, or one for each report
  std::string title;

  // As given on the command line, until CompleteBenchFlags.
  bool sweep_asked = false;
  std::string api_key_file, input_len = "256", output_len = "64", trace_path;
  std::vector<std::string> api_keys;
  double trace_scale = 1, slo_ttft_ms = 1000, slo_itl_ms = 100;
  TrafficOptions traffic;
};

void AddBenchFlags(CLI::App* app, BenchFlags* flags);

// Reads the key and trace files, checks what excludes what, and fills bench, sweep and mode. Names
// the flag.
Status CompleteBenchFlags(const CLI::App& app, BenchFlags* flags);

}  // namespace kvasir
