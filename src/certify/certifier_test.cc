#include "certify/certifier.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "calibrate/own_text.h"
#include "certify/measure.h"
#include "certify/test_models.h"
#include "env/thread_pool.h"

namespace kvasir {
namespace {

const CacheFormat kF32 = CacheFormat::Of("f32");
const CacheFormat kBf16 = CacheFormat::Of("bf16");
const CacheFormat kMixed = {"f16", "bf16"};

class CertifyTest : public ::testing::Test {
 protected:
  CertifyTest() : model_(testing::LoadSmallRandom(folder_, pool_)) {
    setenv("XDG_CACHE_HOME", (folder_ / "cache").c_str(), 1);
    options_.formats = {kBf16};
    options_.quick = true;
    options_.forward.precision = Precision::kExact;
  }
  ~CertifyTest() override { unsetenv("XDG_CACHE_HOME"); }

  Result<std::vector<Certificate>> Run(const CertifyOptions& options, const std::string& name) {
    KVASIR_ASSIGN_OR_RETURN(Certifier certifier, Certifier::Make(*model_, options, pool_));
    Sidecar work = certifier.WorkFile(folder_ / name);
    return certifier.Run(&work, &notes_);
  }
  std::string WorkPath(const std::string& name) {
    return Certifier::Make(*model_, options_, pool_)->WorkFile(folder_ / name).path();
  }
  static std::string Text(const std::vector<Certificate>& certificates) {
    std::string text;
    for (const Certificate& one : certificates) text += CertificateToJson(one).dump(1) + "\n";
    return text;
  }

  testing::TempFolder folder_;
  ThreadPool pool_{2};
  std::unique_ptr<Model> model_;
  CertifyOptions options_;
  std::vector<std::string> notes_;
};

TEST_F(CertifyTest, MeasuresEverything) {
  double last = 0;
  std::string parts;
  options_.progress = [&](const CertifyProgress& progress) {
    EXPECT_GE(progress.fraction, last - 1e-9);
    EXPECT_LE(progress.fraction, 1.0);
    EXPECT_EQ(progress.resumed, 0);
    last = progress.fraction;
    if (!parts.ends_with(progress.part + " ")) parts += progress.part + " ";
  };
  const auto certificates = Run(options_, "a.gguf");
  ASSERT_TRUE(certificates.ok()) << certificates.status().ToString();
  EXPECT_NEAR(last, 1, 1e-9);
  for (const char* part : {"writing text", "prefill-0", "decode-1", "greedy-0", "repeat-16"}) {
    EXPECT_NE(parts.find(part), std::string::npos) << parts;
  }
  ASSERT_EQ(certificates->size(), 1U);
  const Certificate& bf16 = (*certificates)[0];
  EXPECT_EQ(bf16.name(), "bf16");
  EXPECT_EQ(bf16.bytes_per_token, 2 * 2 * 2 * 16 * 2);  // layers, K and V, heads, width, bytes
  EXPECT_EQ(bf16.settings.max_len, 160);
  const Measures& measures = bf16.measures;
  EXPECT_EQ(measures.prefill.count, 3 * 160);
  EXPECT_EQ(measures.decode.count, 2 * 160);
  EXPECT_EQ(measures.prefill.broken, 0);
  EXPECT_GT(measures.prefill.mean, 0);
  ASSERT_EQ(measures.buckets.size(), 2U);
  EXPECT_EQ(measures.buckets[0].prefill.count, 3 * 128);
  EXPECT_EQ(measures.buckets[1].prefill.count, 3 * 32);
  EXPECT_GE(measures.greedy.prompts, 100);
  EXPECT_TRUE(bf16.control_failed) << "two bits must be seen";
  EXPECT_GT(bf16.control_mean, 10 * measures.prefill.mean);
  EXPECT_TRUE(notes_.empty());
}

// Promise 3, seen from here: token by token gives the very numbers of whole chunks.
TEST_F(CertifyTest, DecodeModeEqualsPrefillMode) {
  options_.formats = {kBf16, kMixed};
  const auto certificates = Run(options_, "a.gguf");
  ASSERT_TRUE(certificates.ok());
  for (const Certificate& certificate : *certificates) {
    EXPECT_EQ(certificate.measures.ratio, 1) << certificate.name();
  }
}

TEST_F(CertifyTest, AFormatAgainstItselfLosesNothing) {
  options_.base = kF32;
  options_.formats = {kF32};
  const auto certificates = Run(options_, "a.gguf");
  ASSERT_TRUE(certificates.ok());
  const Measures& measures = (*certificates)[0].measures;
  EXPECT_EQ(measures.prefill.max, 0);
  EXPECT_EQ(measures.decode.max, 0);
  EXPECT_EQ(measures.prefill.top1, 1);
  EXPECT_EQ(measures.greedy.same, measures.greedy.prompts);
  EXPECT_EQ(measures.recall(), 1);
  EXPECT_EQ((*certificates)[0].Verdict(), "strict");
}

TEST_F(CertifyTest, StoppedAndTakenUpAgainGivesTheSameBytes) {
  options_.formats = {kBf16, kMixed};
  const auto whole = Run(options_, "whole.gguf");
  ASSERT_TRUE(whole.ok()) << whole.status().ToString();
  const std::string expected = Text(*whole);

  std::atomic<bool> stop{false};
  CertifyOptions stopping = options_;
  stopping.stop = &stop;
  std::string began;
  double fresh = 0;
  stopping.progress = [&](const CertifyProgress& progress) {
    // As soon as a second part of this run has got somewhere.
    if (progress.fraction - progress.resumed <= fresh + 1e-9) return;
    fresh = progress.fraction - progress.resumed;
    if (began.empty()) began = progress.part;
    if (progress.part != began) stop = true;
  };
  int runs = 0;
  double resumed = 0;
  for (; runs < 100; ++runs) {
    stop = false;
    began.clear();
    fresh = 0;
    const auto result = Run(stopping, "stopped.gguf");
    if (result.ok()) {
      EXPECT_EQ(Text(*result), expected);
      break;
    }
    ASSERT_EQ(result.status().code(), StatusCode::kCancelled) << result.status().ToString();
  }
  EXPECT_GT(runs, 5);
  EXPECT_LT(runs, 100);
  // And once more, with all of it kept: nothing is computed, only summed up.
  options_.progress = [&](const CertifyProgress& progress) { resumed = progress.resumed; };
  const auto again = Run(options_, "stopped.gguf");
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(Text(*again), expected);
  EXPECT_NEAR(resumed, 1, 1e-9);
}

TEST_F(CertifyTest, ADamagedWorkFileCostsOnlyTime) {
  const auto whole = Run(options_, "w.gguf");
  ASSERT_TRUE(whole.ok());
  const std::string path = WorkPath("w.gguf");
  ASSERT_TRUE(std::filesystem::exists(path));
  nlohmann::json file = nlohmann::json::parse(std::ifstream(path));
  int damaged = 0;
  for (auto& [name, section] : file["sections"].items()) {
    if (damaged++ % 2 == 0) section["data"] = {{"text", 1}};
  }
  std::ofstream(path) << file;
  const auto again = Run(options_, "w.gguf");
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(Text(*again), Text(*whole));
  // One text, then one prompt, shorter than the plan wants it.
  for (const char* of : {"texts", "prompts"}) {
    file = nlohmann::json::parse(std::ifstream(path));
    auto& first = file["sections"]["texts"]["data"][of][0];
    ASSERT_TRUE(first.is_array());
    first.erase(first.size() - 1);
    std::ofstream(path) << file;
    const auto shorter = Run(options_, "w.gguf");
    ASSERT_TRUE(shorter.ok());
    EXPECT_EQ(Text(*shorter), Text(*whole));
  }
  std::ofstream(path) << "{";
  const auto anew = Run(options_, "w.gguf");
  ASSERT_TRUE(anew.ok());
  EXPECT_EQ(Text(*anew), Text(*whole));
}

TEST_F(CertifyTest, OtherSettingsDoNotMeetKeptParts) {
  const auto made = Certifier::Make(*model_, options_, pool_);
  ASSERT_TRUE(made.ok());
  Sidecar work = made->WorkFile(folder_ / "m.gguf");
  ASSERT_TRUE(work.Store("x", 1, 1).ok());
  const auto sees = [&](const CertifyOptions& options) {
    const auto certifier = Certifier::Make(*model_, options, pool_);
    return certifier->WorkFile(folder_ / "m.gguf").Find("x", 1) != nullptr;
  };
  EXPECT_TRUE(sees(options_));
  CertifyOptions other = options_;
  other.seed = 2;
  EXPECT_FALSE(sees(other));
  other = options_;
  other.base = kF32;
  EXPECT_FALSE(sees(other));
  other = options_;
  other.quick = false;
  EXPECT_FALSE(sees(other));
  other = options_;
  other.text.assign(300, 5);
  EXPECT_FALSE(sees(other));
  other = options_;
  other.forward.precision = Precision::kFast;
  EXPECT_FALSE(sees(other));
  other = options_;
  other.formats = {kMixed};
  EXPECT_TRUE(sees(other)) << "another format adds to what is there";
}

TEST_F(CertifyTest, ReadsTheUsersText) {
  for (int i = 0; i < 900; ++i) options_.text.push_back((i * 7919) % 256);
  options_.bos = 298;
  const auto certificates = Run(options_, "a.gguf");
  ASSERT_TRUE(certificates.ok()) << certificates.status().ToString();
  const Certificate& bf16 = (*certificates)[0];
  EXPECT_EQ(bf16.settings.text.substr(0, 5), "file ");
  EXPECT_EQ(bf16.measures.prefill.count, 3 * 160);  // 3 * 159 tokens of the file
  options_.text.resize(300);
  const auto less = Run(options_, "a.gguf");
  ASSERT_TRUE(less.ok());
  EXPECT_EQ((*less)[0].measures.prefill.count, 300 + 2);
  options_.text.resize(100);
  EXPECT_EQ(Run(options_, "a.gguf").status().code(), StatusCode::kInvalidArgument);
  options_.text.assign(300, 300);
  EXPECT_EQ(Run(options_, "a.gguf").status().code(), StatusCode::kInvalidArgument);
}

TEST_F(CertifyTest, RefusesWhatCannotBe) {
  options_.max_len = 161;
  const Status longer = Run(options_, "a.gguf").status();
  EXPECT_EQ(longer.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(longer.message().find("160"), std::string::npos);
  options_.max_len = 10;
  EXPECT_EQ(Run(options_, "a.gguf").status().code(), StatusCode::kInvalidArgument);
  options_.max_len = 0;
  options_.formats.clear();
  EXPECT_EQ(Run(options_, "a.gguf").status().code(), StatusCode::kInvalidArgument);
}

// Fewer bits, more divergence; eight bits are far better than two.
TEST_F(CertifyTest, DivergenceGrowsAsBitsGo) {
  OwnTextOptions own;
  own.sequences = 1;
  own.tokens = 160;
  const auto text = WriteOwnText(*model_, own, pool_);
  ASSERT_TRUE(text.ok());
  const MeasureContext context{*model_, options_.forward, {}, pool_, nullptr, {}};
  std::vector<Contender> contenders;
  for (const int bits : {12, 8, 4, 2}) contenders.push_back({"", {}, bits});
  const auto results = MeasurePrefill(context, contenders, (*text)[0], 0);
  ASSERT_TRUE(results.ok());
  double last = 0;
  for (const PartResult& result : *results) {
    const Measures sum =
        SumUp(std::vector{MeasuredPart{MeasuredPart::Mode::kPrefill, result}}, 160, 1);
    EXPECT_GT(sum.prefill.mean, 3 * last);
    last = sum.prefill.mean;
  }
}

}  // namespace
}  // namespace kvasir
