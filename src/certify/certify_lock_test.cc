#include "certify/certify_lock.h"

#include <gtest/gtest.h>

#include <fstream>
#include <optional>

#include "model/testing/temp_folder.h"

namespace kvasir {
namespace {

TEST(CertifyLock, OneAtATimeForEachModel) {
  const testing::TempFolder folder;
  std::ofstream(folder / "a.gguf") << "a";
  std::ofstream(folder / "b.gguf") << "b";
  std::optional<Result<CertifyLock>> first = CertifyLock::Take(folder / "a.gguf");
  ASSERT_TRUE(first->ok());
  const auto second = CertifyLock::Take(folder / "a.gguf");
  ASSERT_EQ(second.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(second.status().message().find("a.gguf"), std::string::npos);
  EXPECT_TRUE(CertifyLock::Take(folder / "b.gguf").ok());
  first.reset();
  EXPECT_TRUE(CertifyLock::Take(folder / "a.gguf").ok());
  EXPECT_TRUE(CertifyLock::Take(folder / "gone.gguf").ok()) << "loading says what is wrong";
}

}  // namespace
}  // namespace kvasir
