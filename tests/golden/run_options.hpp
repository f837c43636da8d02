#ifndef KVEVICT_TESTS_GOLDEN_RUN_OPTIONS_HPP_
#define KVEVICT_TESTS_GOLDEN_RUN_OPTIONS_HPP_

#include "kvevict/core/budget.hpp"
#include "kvevict/option_text.hpp"
#include "support/golden.hpp"

#include <concepts>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace kvevict_test {

// Cases that run a policy several times over the same inputs: `text runs A B`, and the options of
// run A as records A.NAME under the names that the policy gives them.

/// Sets an option from a number, a list of numbers or, as in the text of a composition, a text.
template <class Field>
void set_option(const GoldenCase& golden, const std::string& record, Field& field) {
  if (golden.has_text(record)) {
    std::string expected;
    if (!kvevict::detail::read_option(golden.text(record), field, expected))
      throw std::runtime_error(golden.path() + ": " + record + ": expected " + expected);
  } else if constexpr (std::same_as<Field, bool>) {
    field = golden.count(record) != 0;
  } else if constexpr (std::is_enum_v<Field>) {
    throw std::runtime_error(golden.path() + ": " + record + ": expected a text");
  } else if constexpr (std::same_as<Field, kvevict::Budget>) {
    field = golden.count(record);
  } else if constexpr (std::is_arithmetic_v<Field>) {
    field = static_cast<Field>(golden.real(record));
  } else {
    field.clear();
    for (const double number : golden.tensor(record).values)
      field.push_back(static_cast<typename Field::value_type>(number));
  }
}

/// Sets the options of P that a run has; returns how many these are.
template <class P>
std::size_t set_run_options(const GoldenCase& golden, const std::string& run,
                            typename P::Options& options) {
  using Method = std::remove_cvref_t<decltype(std::declval<P>().method())>;
  std::size_t count = 0;
  Method::visit_options(options, [&](std::string_view name, auto& field) {
    const std::string record = (run + ".").append(name);
    if (!golden.has(record))
      return;
    set_option(golden, record, field);
    ++count;
  });
  return count;
}

/// Throws if a run has an option that nobody asked for.
inline void refuse_other_options(const GoldenCase& golden, const std::string& run) {
  for (const std::string& option : golden.unasked_options(run + "."))
    throw std::runtime_error(golden.path() + ": no option " + option);
}

}  // namespace kvevict_test

#endif  // KVEVICT_TESTS_GOLDEN_RUN_OPTIONS_HPP_
