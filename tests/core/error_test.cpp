#include "kvevict/core/error.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace kvevict {
namespace {

std::string text_of(void (*call)()) {
  try {
    call();
  } catch (const std::invalid_argument& error) {  // what callers know without this library
    return error.what();
  }
  return "";
}

TEST(InvalidArgument, NamesClassFieldAndValue) {
  EXPECT_EQ(text_of([] { detail::require(false, "SnapKV", "budget", 0, "must be > 0"); }),
            "SnapKV: budget = 0 must be > 0");
  EXPECT_EQ(text_of([] { detail::throw_invalid_argument("make_policy", "no such name"); }),
            "make_policy: no such name");
}

TEST(InvalidArgument, IsNotThrownWhereTheConditionHolds) {
  EXPECT_EQ(text_of([] { detail::require(true, "SnapKV", "budget", 0, "must be > 0"); }), "");
}

}  // namespace
}  // namespace kvevict
