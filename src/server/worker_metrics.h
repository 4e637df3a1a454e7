// The part of /metrics that is a snapshot of the engine: gauges, and the cache's and scheduler's
// counters.
#pragma once

#include <prometheus/metric_family.h>

#include <string>
#include <vector>

#include "engine/worker.h"

namespace kvasir {

// All series of one WorkerStats, zeros included. evict: the policy's name, a label.
std::vector<prometheus::MetricFamily> WorkerFamilies(const std::string& model,
                                                     const std::string& evict,
                                                     const Worker& worker);

}  // namespace kvasir
