// Sweeps as one picture: what each run's users saw over the load.
#pragma once

#include <string>
#include <vector>

#include "loadgen/sweep_report.h"

namespace kvasir {

// Six panels (first token, between tokens, output rate, goodput, refusals, queue), a colour for
// each report. "": a title is made from the model's name.
std::string SweepSvg(const std::vector<SweepReport>& reports, const std::string& title = "");

}  // namespace kvasir
