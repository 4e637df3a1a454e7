#include "certify/choose_kv.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>

#include "certify/test_models.h"
#include "env/thread_pool.h"

namespace kvasir {
namespace {

const CacheFormat kF16 = {"f16", "f16"};
const CacheFormat kBf16 = {"bf16", "bf16"};
const CacheFormat kI8 = {"i8", "i8"};
const CacheFormat kK8V4 = {"i8", "i4"};
const CacheFormat kI4 = {"i4", "i4"};
const CacheFormat kAll[] = {kF16, kBf16, kI8, kK8V4, kI4};

Certificate Make(const CacheFormat& format, double bytes, double mean, bool quick = false) {
  Certificate certificate;
  certificate.format = format;
  certificate.bytes_per_token = bytes;
  certificate.settings.max_len = 8192;
  certificate.settings.quick = quick;
  certificate.measures.prefill = {10000, 0, mean, mean * 10, 0.5, 0.999};
  certificate.measures.buckets = {{0, 127, {128, 0, mean, mean * 10, 0.5, 0.999}, {}}};
  certificate.measures.greedy = {104, 128, 100, 20, 40};
  certificate.control_mean = 2;
  certificate.control_failed = true;
  return certificate;
}

KvQuickCheck Check(double mean, double top1, double control_mean = 2, double control_top1 = 0.2) {
  return {{512, 0, mean, 0, 0, top1}, {128, 0, control_mean, 0, 0, control_top1}};
}

ModelConfig SmallShape(int32_t context) {
  ModelConfig config;
  config.context = context;
  LayerKv layer;
  layer.kv_heads = 2;
  layer.k_dim = layer.v_dim = 64;
  config.cache.assign(2, layer);
  return config;
}

TEST(ChooseCacheFormat, TheSmallestThatKeepsTheBudget) {
  const std::vector<Certificate> all = {Make(kI8, 8.25, 0.0003), Make(kI4, 4.5, 0.03),
                                        Make(kK8V4, 6.4, 0.006), Make(kBf16, 16, 0.0001)};
  const auto choose = [&](KvQuality quality) {
    return ChooseCacheFormat(all, quality, kAll, nullptr);
  };
  EXPECT_EQ(choose(KvQuality::kStrict).format, kI8);
  EXPECT_EQ(choose(KvQuality::kBalanced).format, kK8V4);
  EXPECT_EQ(choose(KvQuality::kSmall).format, kI4);
  EXPECT_NE(choose(KvQuality::kSmall).reason.find("i4"), std::string::npos);
  EXPECT_NE(choose(KvQuality::kSmall).reason.find("small"), std::string::npos);
  for (const KvQuality quality : kKvQualities) EXPECT_FALSE(NeedsQuickCheck(all, quality, kAll));
  // What this build or model cannot serve is not chosen.
  const CacheFormat some[] = {kF16, kI8};
  EXPECT_EQ(ChooseCacheFormat(all, KvQuality::kSmall, some, nullptr).format, kI8);
}

// Neither a quick certificate nor one of short texts says what four bits do to long ones.
TEST(CertificatesThatCount, FourBitsNeedLongTexts) {
  const ModelConfig config = SmallShape(8192);
  std::vector<std::string> notes;
  const auto names = [&](const std::vector<Certificate>& from, const ModelConfig& shape) {
    notes.clear();
    std::string all;
    for (const Certificate& c : CertificatesThatCount(from, shape, KvQuality::kSmall, &notes))
      all += c.name() + " ";
    return all;
  };
  const std::vector<Certificate> quick = {
      Make(kI8, 8.25, 0.0003, true), Make(kI4, 4.5, 0.0003, true), Make(kK8V4, 6.4, 0.0003, true)};
  EXPECT_EQ(names(quick, config), "i8 ");
  EXPECT_EQ(notes.size(), 2U);
  std::vector<Certificate> full = {Make(kI8, 8.25, 0.0003), Make(kI4, 4.5, 0.0003)};
  EXPECT_EQ(names(full, config), "i8 i4 ");
  EXPECT_TRUE(notes.empty());
  full[0].settings.max_len = full[1].settings.max_len = 256;
  EXPECT_EQ(names(full, config), "i8 ");
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_NE(notes[0].find("4096 tokens"), std::string::npos) << notes[0];
  EXPECT_EQ(names(full, SmallShape(256)), "i8 i4 ") << "the model sees no longer texts";
  EXPECT_EQ(names({Make(kI4, 4.5, 0.5, true)}, config), "i4 ") << "that it fails, it has seen";
}

// What the file says of sizes is not believed.
TEST(CertificatesThatCount, BytesAreComputed) {
  const ModelConfig config = SmallShape(8192);
  const std::vector<Certificate> counted =
      CertificatesThatCount({Make(kI8, 1, 0.0003)}, config, KvQuality::kStrict, nullptr);
  ASSERT_EQ(counted.size(), 1U);
  EXPECT_EQ(counted[0].bytes_per_token, MakeKvLayout(config, kI8, 16)->bytes_per_token());
}

TEST(ChooseCacheFormat, AVoidCertificateCountsAsFailed) {
  std::vector<Certificate> blind = {Make(kI8, 8.25, 0.0003)};
  blind[0].control_failed = false;
  const KvChoice choice = ChooseCacheFormat(blind, KvQuality::kSmall, kAll, nullptr);
  EXPECT_EQ(choice.format, kF16);
  EXPECT_NE(choice.reason.find("void"), std::string::npos) << choice.reason;
  EXPECT_FALSE(blind[0].quality().has_value());
}

TEST(ChooseCacheFormat, WithoutACertificateTheCheckDecidesAboutI8) {
  const KvQuickCheck good = Check(0.0004, 0.99), bad = Check(0.01, 0.95);
  EXPECT_TRUE(NeedsQuickCheck({}, KvQuality::kBalanced, kAll));
  EXPECT_EQ(ChooseCacheFormat({}, KvQuality::kBalanced, kAll, &good).format, kI8);
  EXPECT_EQ(ChooseCacheFormat({}, KvQuality::kBalanced, kAll, &bad).format, kF16);
  EXPECT_EQ(ChooseCacheFormat({}, KvQuality::kBalanced, kAll, nullptr).format, kF16);
  // Not where i8 is not served.
  const CacheFormat wide[] = {kF16, kBf16};
  EXPECT_FALSE(NeedsQuickCheck({}, KvQuality::kBalanced, wide));
  EXPECT_EQ(ChooseCacheFormat({}, KvQuality::kBalanced, wide, &good).format, kF16);
  // A certificate of i8 that failed outweighs the check; one of another format does not.
  const std::vector<Certificate> failed = {Make(kI8, 8.25, 0.5)};
  EXPECT_FALSE(NeedsQuickCheck(failed, KvQuality::kBalanced, kAll));
  EXPECT_EQ(ChooseCacheFormat(failed, KvQuality::kBalanced, kAll, &good).format, kF16);
  const std::vector<Certificate> other = {Make(kI4, 4.5, 0.5)};
  EXPECT_TRUE(NeedsQuickCheck(other, KvQuality::kBalanced, kAll));
  EXPECT_EQ(ChooseCacheFormat(other, KvQuality::kBalanced, kAll, &good).format, kI8);
}

TEST(QuickCheck, TheControlMustFail) {
  EXPECT_TRUE(Check(0.0004, 0.99).Passes(KvQuality::kBalanced));
  EXPECT_FALSE(Check(0.0004, 0.95).Passes(KvQuality::kBalanced));
  EXPECT_FALSE(Check(0.003, 0.99).Passes(KvQuality::kBalanced));
  EXPECT_FALSE(Check(0.0, 1.0, 0.0, 1.0).Passes(KvQuality::kBalanced)) << "blind";
  EXPECT_FALSE(Check(0.0, 1.0, 0.5, 0.99).Passes(KvQuality::kBalanced)) << "blind";
  EXPECT_FALSE(KvQuickCheck().Passes(KvQuality::kBalanced));
  KvQuickCheck unseen = Check(0.0004, 0.99);
  unseen.control = {};
  EXPECT_FALSE(unseen.Passes(KvQuality::kBalanced)) << "a control that saw nothing";
  KvQuickCheck broken = Check(0.0004, 0.99);
  broken.i8.broken = 1;
  EXPECT_FALSE(broken.Passes(KvQuality::kBalanced));
  EXPECT_FALSE(Check(0.0004, 0.985).Passes(KvQuality::kStrict)) << "strict means its own limit";
  EXPECT_TRUE(Check(0.0004, 0.985).Passes(KvQuality::kBalanced));
  EXPECT_NE(Check(0.003, 0.99).WhyNot(KvQuality::kSmall).find("0.003 > 0.001"), std::string::npos);
  EXPECT_NE(Check(0.0, 1.0, 0.0, 1.0).WhyNot(KvQuality::kSmall).find("blind"), std::string::npos);
}

TEST(StandingOf, SaysWhatIsKnown) {
  const std::vector<Certificate> all = {Make(kI8, 8.25, 0.0003), Make(kI4, 4.5, 0.03)};
  EXPECT_EQ(StandingOf(all, kF16, KvQuality::kBalanced).standing, KvStanding::kReference);
  EXPECT_EQ(StandingOf(all, kI8, KvQuality::kBalanced).standing, KvStanding::kCertified);
  EXPECT_EQ(StandingOf(all, kI4, KvQuality::kSmall).standing, KvStanding::kCertified);
  const KvVerdict failed = StandingOf(all, kI4, KvQuality::kBalanced);
  EXPECT_EQ(failed.standing, KvStanding::kFailed);
  EXPECT_NE(failed.text.find("mean KLD 0.03"), std::string::npos) << failed.text;
  EXPECT_EQ(StandingOf(all, kK8V4, KvQuality::kBalanced).standing, KvStanding::kUnknown);
}

class InSidecar : public ::testing::Test {
 protected:
  InSidecar() { setenv("XDG_CACHE_HOME", (folder_ / "cache").c_str(), 1); }
  ~InSidecar() override { unsetenv("XDG_CACHE_HOME"); }
  Sidecar Open() const { return {folder_ / "m.gguf", 77}; }
  testing::TempFolder folder_;
};

TEST_F(InSidecar, CertificatesAreKeptAndReplaced) {
  Sidecar sidecar = Open();
  ASSERT_TRUE(sidecar.Store("two_term_blocks", 1, 5).ok());
  ASSERT_TRUE(
      StoreCertificates(std::vector{Make(kI8, 8.25, 0.5), Make(kI4, 4.5, 0.03)}, &sidecar).ok());
  ASSERT_TRUE(StoreCertificates(std::vector{Make(kI8, 8.25, 0.0003)}, &sidecar).ok());
  std::vector<std::string> notes;
  const Sidecar again = Open();
  const std::vector<Certificate> back = LoadCertificates(again, &notes);
  EXPECT_TRUE(notes.empty());
  ASSERT_EQ(back.size(), 2U);
  EXPECT_EQ(back[0].Verdict(), "strict");
  EXPECT_EQ(back[1].Verdict().substr(0, 5), "small");
  EXPECT_EQ(CertificateToJson(back[0]).dump(), CertificateToJson(Make(kI8, 8.25, 0.0003)).dump());
  EXPECT_NE(again.Find("two_term_blocks", 1), nullptr);
  EXPECT_TRUE(LoadCertificates(Sidecar(folder_ / "m.gguf", 78), nullptr).empty())
      << "made for another model";
}

TEST_F(InSidecar, TwoWhoCertifyKeepEachOthers) {
  Sidecar first = Open(), second = Open();
  ASSERT_TRUE(StoreCertificates(std::vector{Make(kI8, 8.25, 0.0003)}, &first).ok());
  ASSERT_TRUE(StoreCertificates(std::vector{Make(kI4, 4.5, 0.03)}, &second).ok());
  EXPECT_EQ(LoadCertificates(Open(), nullptr).size(), 2U);
}

TEST_F(InSidecar, BrokenOnesAreRefusedOneByOne) {
  const nlohmann::json good = nlohmann::json(CertificateToJson(Make(kI8, 8.25, 0.0003)));
  ASSERT_TRUE(CertificateFromJson(good).ok());
  const auto refused = [&](const std::function<void(nlohmann::json*)>& damage) {
    nlohmann::json bad = good;
    damage(&bad);
    EXPECT_FALSE(CertificateFromJson(bad).ok()) << bad;
    Sidecar sidecar = Open();
    EXPECT_TRUE(sidecar.Store("certificates", 1, {bad, good}).ok());
    std::vector<std::string> notes;
    EXPECT_EQ(LoadCertificates(sidecar, &notes).size(), 1U);
    EXPECT_EQ(notes.size(), 1U);
  };
  for (const char* key : {"k", "v", "bytes_per_token", "method", "format_version", "settings",
                          "control", "measures"}) {
    refused([&](nlohmann::json* json) { json->erase(key); });
    refused([&](nlohmann::json* json) { (*json)[key] = nullptr; });
  }
  for (const char* key : {"precision", "base", "text", "max_len", "seed", "quick"}) {
    refused([&](nlohmann::json* json) { (*json)["settings"].erase(key); });
  }
  refused([](nlohmann::json* json) { (*json)["k"] = "i9"; });
  refused([](nlohmann::json* json) { (*json)["bytes_per_token"] = -1; });
  refused([](nlohmann::json* json) { (*json)["settings"]["max_len"] = 0; });
  refused([](nlohmann::json* json) { (*json)["method"] = kCertifyMethod + 1; });
  refused([](nlohmann::json* json) { (*json)["format_version"] = "i8.1000"; });
  refused([](nlohmann::json* json) { (*json)["measures"]["buckets"] = nlohmann::json::array(); });
  refused([](nlohmann::json* json) { (*json)["measures"]["prefill"]["positions"] = 0; });
  refused([](nlohmann::json* json) { *json = "certificate"; });
  Sidecar sidecar = Open();
  ASSERT_TRUE(sidecar.Store("certificates", 1, 3).ok());
  std::vector<std::string> notes;
  EXPECT_TRUE(LoadCertificates(sidecar, &notes).empty());
  EXPECT_EQ(notes.size(), 1U);
}

// A verdict written into the file by hand counts for nothing: it is judged anew.
TEST_F(InSidecar, TheStoredVerdictIsNotBelieved) {
  nlohmann::json forged = nlohmann::json(CertificateToJson(Make(kI4, 4.5, 0.5)));
  forged["verdict"] = forged["quality"] = "strict";
  const auto back = CertificateFromJson(forged);
  ASSERT_TRUE(back.ok());
  EXPECT_FALSE(back->Passes(KvQuality::kSmall));
}

TEST_F(InSidecar, AutoOnAModelIsDecidedOnceAndStored) {
  ThreadPool pool(2);
  const auto model = testing::LoadSmallRandom(folder_, pool);
  ForwardOptions forward;
  forward.precision = Precision::kExact;
  std::vector<std::string> notes;
  int computed = 0;
  const auto count = [&](double) { ++computed; };
  const auto choose = [&] {
    Sidecar sidecar(folder_ / "small.gguf", model->fingerprint());
    return ChooseKvType(*model, &sidecar, KvQuality::kBalanced, forward, pool, count, &notes);
  };
  const auto first = choose();
  ASSERT_TRUE(first.ok()) << first.status().ToString();
  const bool served = KvTypeServed(KvType::kI8);
  EXPECT_EQ(computed > 0, served) << "the check needs kernels, and nothing else is computed";
  computed = 0;
  const auto second = choose();
  EXPECT_EQ(computed, 0);
  EXPECT_EQ(second->format, first->format);
  EXPECT_EQ(second->reason, first->reason);
  EXPECT_TRUE(notes.empty());
  if (!served) {
    EXPECT_EQ(first->format, kF16);
  }
}

TEST_F(InSidecar, DecidesWhatAServerDoes) {
  ThreadPool pool(2);
  const auto model = testing::LoadSmallRandom(folder_, pool);
  ForwardOptions forward;
  forward.precision = Precision::kExact;
  Sidecar sidecar(folder_ / "small.gguf", model->fingerprint());
  ASSERT_TRUE(
      StoreCertificates(std::vector{Make(kBf16, 16, 0.003), Make(kI8, 99, 0.9)}, &sidecar).ok());
  std::vector<std::string> notes;
  const auto decide = [&](const std::string& k, const std::string& v, KvQuality quality) {
    notes.clear();
    return DecideKv(*model, k, v, &sidecar, quality, forward, pool, {}, &notes);
  };
  // Asked for, and fine.
  auto got = decide("bf16", "bf16", KvQuality::kBalanced);
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->format, kBf16);
  EXPECT_EQ(got->verdict.standing, KvStanding::kCertified);
  EXPECT_TRUE(notes.empty());
  // Asked for, and failed: served, and the log says so.
  got = decide("bf16", "bf16", KvQuality::kStrict);
  EXPECT_EQ(got->format, kBf16);
  EXPECT_EQ(got->verdict.standing, KvStanding::kFailed);
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_NE(notes[0].find("mean KLD 0.003 > 0.001"), std::string::npos) << notes[0];
  // Other names mean the same.
  EXPECT_EQ(decide("q8_0", "q8_0", KvQuality::kSmall)->verdict.standing, KvStanding::kFailed);
  EXPECT_EQ(decide("f16", "f32", KvQuality::kStrict)->verdict.standing, KvStanding::kReference);
  EXPECT_EQ(decide("f16", "bf16", KvQuality::kStrict)->verdict.standing, KvStanding::kUnknown);
  // By itself.
  got = decide("auto", "auto", KvQuality::kBalanced);
  EXPECT_EQ(got->format, kBf16);
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_NE(notes[0].find("auto"), std::string::npos);
  EXPECT_EQ(decide("auto", "auto", KvQuality::kStrict)->format, kF16);
  EXPECT_FALSE(decide("auto", "f16", KvQuality::kStrict).ok());
}

}  // namespace
}  // namespace kvasir
