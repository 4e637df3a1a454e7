#include "base/status.h"

#include <gtest/gtest.h>

#include <memory>

#include "base/parallel.h"

namespace kvasir {
namespace {

TEST(Status, CarriesCodeMessageAndField) {
  EXPECT_TRUE(Status::Ok().ok());
  EXPECT_EQ(Status::Ok().ToString(), "ok");
  const Status bad = InvalidArgument("top_p must be in (0, 1]", "top_p");
  EXPECT_FALSE(bad.ok());
  EXPECT_EQ(bad.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(bad.field(), "top_p");
  EXPECT_EQ(bad.ToString(), "invalid argument: top_p must be in (0, 1]");
  EXPECT_EQ(DataLoss("x").code(), StatusCode::kDataLoss);
  EXPECT_EQ(Unimplemented("x").ToString(), "not supported: x");
}

Result<std::unique_ptr<int>> Half(int n) {
  if (n % 2 != 0) return InvalidArgument("odd");
  return std::make_unique<int>(n / 2);
}

Result<int> Quarter(int n) {
  KVASIR_ASSIGN_OR_RETURN(const std::unique_ptr<int> half, Half(n));
  KVASIR_ASSIGN_OR_RETURN(const std::unique_ptr<int> quarter, Half(*half));
  return *quarter;
}

Status CheckQuarter(int n) {
  KVASIR_RETURN_IF_ERROR(Quarter(n).status());
  return Status::Ok();
}

TEST(Result, HoldsMoveOnlyValuesAndPassesFailuresOn) {
  ASSERT_TRUE(Quarter(12).ok());
  EXPECT_EQ(*Quarter(12), 3);
  EXPECT_EQ(Quarter(6).status().message(), "odd");
  EXPECT_EQ(Quarter(7).status().message(), "odd");
  EXPECT_TRUE(CheckQuarter(8).ok());
  EXPECT_EQ(CheckQuarter(2).code(), StatusCode::kInvalidArgument);
}

TEST(ResultDeathTest, ReadingAFailureIsOurOwnMistake) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH((void)Half(1).value(), "CHECK failed");
}

TEST(FunctionRef, CallsLambdasAndConstLambdas) {
  int sum = 0;
  auto add = [&](int n) { return sum += n; };
  const auto twice = [&](FunctionRef<int(int)> f) { return f(1) + f(1); };
  EXPECT_EQ(twice(add), 3);
  SerialExecutor serial;
  serial.ParallelFor(5, [&](size_t part, int worker) { sum += static_cast<int>(part) + worker; });
  EXPECT_EQ(sum, 2 + 10);
}

}  // namespace
}  // namespace kvasir
