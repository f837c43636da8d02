#ifndef KVEVICT_CORE_ERROR_HPP_
#define KVEVICT_CORE_ERROR_HPP_

#include "kvevict/config.hpp"

#include <stdexcept>
#include <string>
#include <string_view>

#if !defined(__cpp_exceptions)
#include <exception>
#endif

KVEVICT_NAMESPACE_BEGIN

/// Thrown for an option or a shape that cannot work; the text names class, field and value.
class InvalidArgument : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

namespace detail {

/// Throws InvalidArgument "<where>: <what>". Kept out of line so that callers stay small. Built
/// without exceptions the program ends by std::terminate, as a throw from noexcept code would.
[[noreturn]] inline void throw_invalid_argument(std::string_view where, std::string_view what) {
#if defined(__cpp_exceptions)
  throw InvalidArgument(std::string(where).append(": ").append(what));
#else
  static_cast<void>(where);
  static_cast<void>(what);
  std::terminate();
#endif
}

/// The same with a field and its value: "<where>: <field> = <value> <requirement>".
template <class Number>
[[noreturn]] void throw_invalid_field(std::string_view where, std::string_view field, Number value,
                                      std::string_view requirement) {
  throw_invalid_argument(where, std::string(field)
                                    .append(" = ")
                                    .append(std::to_string(value))
                                    .append(" ")
                                    .append(requirement));
}

/// Throws unless `condition` holds.
template <class Number>
void require(bool condition, std::string_view where, std::string_view field, Number value,
             std::string_view requirement) {
  if (!condition)
    throw_invalid_field(where, field, value, requirement);
}

}  // namespace detail
KVEVICT_NAMESPACE_END

#endif  // KVEVICT_CORE_ERROR_HPP_
