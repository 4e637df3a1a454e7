#include "env/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

#include "base/hash.h"
#include "env/affinity.h"

namespace kvasir {
namespace {

TEST(ThreadPool, RunsEveryPartOnce) {
  for (int workers : {1, 2, 3, 8}) {
    ThreadPool pool(workers);
    EXPECT_EQ(pool.workers(), workers);
    for (size_t parts : {0, 1, 2, 3, 7, 64, 1000}) {
      std::vector<int> runs(
          parts, 0);  // plain: each part belongs to one thread, and the call orders them for us
      pool.ParallelFor(parts, [&](size_t part, int worker) {
        ASSERT_GE(worker, 0);
        ASSERT_LT(worker, workers);
        ++runs[part];
      });
      for (size_t part = 0; part < parts; ++part)
        ASSERT_EQ(runs[part], 1) << part << " of " << parts;
    }
  }
}

TEST(ThreadPool, OneWorkerRunsOnePieceAtATime) {
  ThreadPool pool(4);
  std::vector<int> inside(4, 0);  // no atomics: TSan would report two pieces of one worker at once
  std::vector<int> runs(4, 0);
  for (int round = 0; round < 200; ++round) {
    pool.ParallelFor(32, [&](size_t, int worker) {
      const auto w = static_cast<size_t>(worker);
      EXPECT_EQ(inside[w]++, 0);
      ++runs[w];
      --inside[w];
    });
  }
  EXPECT_EQ(std::accumulate(runs.begin(), runs.end(), 0), 200 * 32);
}

TEST(ThreadPool, AllWorkersTakePart) {
  ThreadPool pool(3);
  std::atomic<int> here{0};
  // Each part waits for the two others: ends only if three threads run them.
  pool.ParallelFor(3, [&](size_t, int) {
    here.fetch_add(1);
    while (here.load() < 3) std::this_thread::yield();
  });
  EXPECT_EQ(here.load(), 3);
}

// Jobs of random sizes with random pauses between them, so that workers are met spinning, falling
// asleep and asleep.
TEST(ThreadPool, Stress) {
  const uint64_t seed = 7001;
  Rng rng(seed);
  for (int workers : {2, 3, 5}) {
    ThreadPool pool(workers);
    for (int job = 0; job < 4000; ++job) {
      const size_t parts = 1 + rng.Below(rng.Below(10) == 0 ? 300 : 6);
      std::vector<uint64_t> out(parts, 0);
      const uint64_t salt = rng.Next();
      pool.ParallelFor(parts, [&](size_t part, int) { out[part] = CounterRandom(salt, 1, part); });
      for (size_t part = 0; part < parts; ++part) {
        ASSERT_EQ(out[part], CounterRandom(salt, 1, part)) << "seed " << seed << " job " << job;
      }
      if (rng.Below(40) == 0)
        std::this_thread::sleep_for(std::chrono::microseconds(rng.Below(150)));
    }
  }
}

TEST(ThreadPool, MovesBetweenCallers) {
  ThreadPool pool(2);
  for (int i = 0; i < 20; ++i) {
    int sum = 0;
    std::thread caller([&] {
      std::vector<int> out(10, 0);
      pool.ParallelFor(10, [&](size_t part, int) { out[part] = static_cast<int>(part); });
      sum = std::accumulate(out.begin(), out.end(), 0);
    });
    caller.join();
    ASSERT_EQ(sum, 45);
  }
}

TEST(ThreadPool, StartsAndStopsManyTimes) {
  for (int i = 0; i < 200; ++i) {
    ThreadPool pool(1 + i % 5);
    if (i % 2 == 0) pool.ParallelFor(3, [](size_t, int) {});
  }
}

TEST(ThreadPool, BoundWorkersRunWhereTheyShould) {
  const std::vector<int> allowed = AllowedCpus();
  std::vector<int> cpus;  // one CPU may carry several workers
  for (size_t i = 0; i < 3; ++i) cpus.push_back(allowed[i % allowed.size()]);
  std::thread caller([&] {  // its binding goes away with it
    ThreadPool pool(3, cpus);
    pool.BindCaller();
    std::atomic<int> here{0};
    std::vector<int> seen(3, -1);
    pool.ParallelFor(3, [&](size_t, int worker) {
      here.fetch_add(1);
      while (here.load() < 3) std::this_thread::yield();
      seen[static_cast<size_t>(worker)] = sched_getcpu();
    });
    EXPECT_EQ(seen, cpus);
    EXPECT_TRUE(pool.pinned());
  });
  caller.join();
  EXPECT_EQ(AllowedCpus(), allowed);
  ThreadPool loose(2);
  loose.BindCaller();
  EXPECT_FALSE(loose.pinned());
  EXPECT_EQ(AllowedCpus(), allowed);
}

TEST(ThreadPool, ARefusedBindingIsKnownAndHarmless) {
  ThreadPool pool(2, {1 << 19, 1 << 19});
  pool.BindCaller();
  int sum = 0;
  pool.ParallelFor(1, [&](size_t, int) { ++sum; });
  EXPECT_EQ(sum, 1);
  EXPECT_FALSE(pool.pinned());
}

TEST(ThreadPoolDeathTest, IsNotReentrant) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        ThreadPool pool(1);
        pool.ParallelFor(1, [&](size_t, int) { pool.ParallelFor(1, [](size_t, int) {}); });
      },
      "CHECK failed");
}

}  // namespace
}  // namespace kvasir
