#ifndef KVEVICT_TESTS_SUPPORT_ERRORS_HPP_
#define KVEVICT_TESTS_SUPPORT_ERRORS_HPP_

#include "kvevict/core/error.hpp"

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <string_view>

namespace kvevict_test {

/// Passes if `call` throws InvalidArgument with a text that contains every one of `parts`: by rule
/// the class, the field and its value.
template <class Call>
[[nodiscard]] testing::AssertionResult refuses(Call&& call,
                                               std::initializer_list<std::string_view> parts) {
  try {
    call();
  } catch (const kvevict::InvalidArgument& error) {
    const std::string text = error.what();
    for (const std::string_view part : parts) {
      if (text.find(part) == std::string::npos) {
        return testing::AssertionFailure() << "no \"" << part << "\" in \"" << text << '"';
      }
    }
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure() << "nothing was thrown";
}

}  // namespace kvevict_test

#endif  // KVEVICT_TESTS_SUPPORT_ERRORS_HPP_
