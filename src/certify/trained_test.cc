// On models that were trained or made to remember; they stand beside the checkout.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "certify/certifier.h"
#include "certify/test_models.h"
#include "env/thread_pool.h"

namespace kvasir {
namespace {

std::string Fixture(const std::string& name) {
  const char* folder = std::getenv("KVASIR_FIXTURES");
  const std::string path = std::string(folder != nullptr ? folder : "build/fixtures") + "/" + name;
  return std::filesystem::exists(path) ? path : "";
}

Certificate CertifyFile(const std::string& path, int32_t max_len) {
  ThreadPool pool(2);
  testing::TempFolder folder;
  setenv("XDG_CACHE_HOME", (folder / "cache").c_str(), 1);
  const auto model = Model::Load(path, pool);
  KVASIR_CHECK(model.ok());
  CertifyOptions options;
  options.formats = {CacheFormat::Of("bf16")};
  options.quick = true;
  options.max_len = max_len;
  options.forward.precision = Precision::kExact;
  auto certifier = Certifier::Make(**model, options, pool);
  KVASIR_CHECK(certifier.ok());
  std::vector<std::string> notes;
  Sidecar work = certifier->WorkFile(folder / "m.gguf");
  const auto certificates = certifier->Run(&work, &notes);
  KVASIR_CHECK(certificates.ok());
  unsetenv("XDG_CACHE_HOME");
  const Certificate& bf16 = (*certificates)[0];
  std::printf(
      "%s: bf16 mean %.2g, p99 %.2g, top-1 %.2f %%, ratio %.3f, greedy %d; control %.2g; %s\n",
      path.c_str(), bf16.measures.prefill.mean, bf16.measures.prefill.p99,
      bf16.measures.prefill.top1 * 100, bf16.measures.ratio, bf16.measures.greedy.median,
      bf16.control_mean, bf16.Verdict().c_str());
  return bf16;
}

TEST(Trained, TheControlFailsAndBf16DoesNot) {
  const std::string path = testing::StoriesPath();
  if (path.empty()) GTEST_SKIP() << "../shared/models/stories260K.gguf is not there";
  const Certificate bf16 = CertifyFile(path, 512);
  EXPECT_TRUE(bf16.control_failed);
  EXPECT_GT(bf16.control_mean, 0.04);
  EXPECT_TRUE(bf16.Passes(KvQuality::kBalanced)) << bf16.Verdict();
  EXPECT_EQ(bf16.measures.ratio, 1);
}

// Attention adds nothing in this model, so no cache can hurt it: the control passes, and the
// certificate must say that it is void.
TEST(Trained, AModelThatIgnoresItsCacheGetsNoCertificate) {
  const std::string path = Fixture("spread.gguf");
  if (path.empty()) GTEST_SKIP() << "no fixtures (KVASIR_FIXTURES)";
  const Certificate bf16 = CertifyFile(path, 256);
  EXPECT_FALSE(bf16.control_failed);
  EXPECT_FALSE(bf16.quality().has_value());
  EXPECT_NE(bf16.Verdict().find("void"), std::string::npos);
}

// Emits the token 32 places back: knows a repetition at distance 32 and no other.
TEST(Trained, RetrievalIsAskedWhereTheBaseKnows) {
  const std::string path = Fixture("copy_32.gguf");
  if (path.empty()) GTEST_SKIP() << "no fixtures (KVASIR_FIXTURES)";
  const Certificate bf16 = CertifyFile(path, 300);
  int counted = 0;
  for (const RetrievalCell& cell : bf16.measures.retrieval) {
    if (cell.kind != "repeat") continue;
    EXPECT_EQ(cell.right, cell.counted) << cell.distance;
    if (cell.distance == 32) {
      EXPECT_EQ(cell.counted, 16);
    } else if (cell.distance > 32) {
      EXPECT_LE(cell.counted, 2) << cell.distance;
    }
    counted += cell.counted;
  }
  EXPECT_GE(counted, 16);
}

}  // namespace
}  // namespace kvasir
