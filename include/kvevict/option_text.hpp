#ifndef KVEVICT_OPTION_TEXT_HPP_
#define KVEVICT_OPTION_TEXT_HPP_

#include "kvevict/config.hpp"
#include "kvevict/core/budget.hpp"
#include "kvevict/core/error.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <vector>

KVEVICT_NAMESPACE_BEGIN
namespace detail {

// Reads one option of a policy from text. The overloads are the types that options have.

template <class Number>
[[nodiscard]] bool read_number(std::string_view text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if constexpr (std::floating_point<Number>) {
    if (!std::isfinite(value))
      return false;
  }
  return error == std::errc() && end == text.data() + text.size();
}

template <class Number>
  requires((std::integral<Number> || std::floating_point<Number>)&&!std::same_as<Number, bool>)
[[nodiscard]] bool read_option(std::string_view text, Number& value, std::string& expected) {
  expected = std::integral<Number> ? "a whole number" : "a number";
  return read_number(text, value);
}

[[nodiscard]] inline bool read_option(std::string_view text, bool& value, std::string& expected) {
  expected = "true or false";
  value = text == "true" || text == "1";
  return value || text == "false" || text == "0";
}

/// "1024" tokens per KV head, "10%" of what is cached, "total:4096" entries over the model.
[[nodiscard]] inline bool read_option(std::string_view text, Budget& value, std::string& expected) {
  expected = "tokens per KV head (1024), a share to keep (10%) or entries in all (total:4096)";
  constexpr std::string_view kTotal = "total:";
  std::size_t count = 0;
  if (text.substr(0, kTotal.size()) == kTotal) {
    if (!read_number(text.substr(kTotal.size()), count))
      return false;
    value = Budget::total(count);
    return true;
  }
  if (!text.empty() && text.back() == '%') {
    double percent = 0;
    if (!read_number(text.substr(0, text.size() - 1), percent))
      return false;
    if (!(percent >= 0 && percent <= 100))
      return false;
    value = Budget::keep_ratio(percent / 100);
    return true;
  }
  if (!read_number(text, count))
    return false;
  value = Budget::tokens(count);
  return true;
}

/// Numbers with colons between them: "3:7:21", "0.25:1".
template <class Number>
[[nodiscard]] bool read_option(std::string_view text, std::vector<Number>& value,
                               std::string& expected) {
  expected = std::integral<Number> ? "whole numbers with ':' between them"
                                   : "numbers with ':' between them";
  value.clear();
  if (text.empty())
    return true;
  for (;;) {
    const std::size_t end = text.find(':');
    if (!read_number(text.substr(0, end), value.emplace_back()))
      return false;
    if (end == std::string_view::npos)
      return true;
    text.remove_prefix(end + 1);
  }
}

/// An enumerator by the name that enum_names(E) gives it, found beside the enum.
template <class Enum>
  requires std::is_enum_v<Enum>
[[nodiscard]] bool read_option(std::string_view text, Enum& value, std::string& expected) {
  expected = "one of";
  for (const auto& [name, enumerator] : enum_names(Enum{})) {
    if (name == text) {
      value = enumerator;
      return true;
    }
    expected.append(" ").append(name);
  }
  return false;
}

// The other way round: what read_option reads as the same value.

template <class Number>
  requires((std::integral<Number> || std::floating_point<Number>)&&!std::same_as<Number, bool>)
[[nodiscard]] std::string option_text(Number value) {
  std::array<char, 32> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  return {buffer.data(), end};
}
[[nodiscard]] inline std::string option_text(bool value) {
  return value ? "true" : "false";
}
[[nodiscard]] inline std::string option_text(const Budget& value) {
  if (value.is_total())
    return "total:" + option_text(value.count());
  if (value.is_tokens())
    return option_text(value.count());
  // A share is a whole number of billionths, which have seven digits as a percentage.
  return option_text(value.unrounded_tokens_of(1'000'000'000) / 1e7) + "%";
}
template <class Number>
[[nodiscard]] std::string option_text(const std::vector<Number>& values) {
  std::string text;
  for (const Number value : values)
    text.append(text.empty() ? "" : ":").append(option_text(value));
  return text;
}
template <class Enum>
  requires std::is_enum_v<Enum>
[[nodiscard]] std::string option_text(Enum value) {
  for (const auto& [name, enumerator] : enum_names(Enum{})) {
    if (enumerator == value)
      return std::string(name);
  }
  return {};
}

/// The options of a policy or part by name, whatever their types: what visit_options visits with.
class OptionFields {
 public:
  struct Field {
    std::string_view name;
    void* value;
    bool (*read)(std::string_view text, void* value, std::string& expected);
    std::string (*text)(const void* value);
  };

  template <class T>
  void operator()(std::string_view name, T& value) {
    fields_.push_back({name, &value,
                       [](std::string_view text, void* to, std::string& expected) {
                         return read_option(text, *static_cast<T*>(to), expected);
                       },
                       [](const void* from) { return option_text(*static_cast<const T*>(from)); }});
  }
  [[nodiscard]] const std::vector<Field>& all() const noexcept { return fields_; }

 private:
  std::vector<Field> fields_;
};

/// Valid as long as `options` is.
template <class Method>
[[nodiscard]] OptionFields option_fields(typename Method::Options& options) {
  OptionFields fields;
  Method::visit_options(options, fields);
  return fields;
}

/// The options of `Method` that are not its defaults, as read_options reads them.
[[nodiscard]] inline std::string write_options(const OptionFields& options,
                                               const OptionFields& defaults) {
  std::string text;
  for (std::size_t i = 0; i < options.all().size(); ++i) {
    const OptionFields::Field& field = options.all()[i];
    const OptionFields::Field& untouched = defaults.all()[i];
    const std::string value = field.text(field.value);
    if (value != untouched.text(untouched.value))
      text.append(text.empty() ? "" : ",").append(field.name).append("=").append(value);
  }
  return text;
}
template <class Method>
[[nodiscard]] std::string write_options(typename Method::Options options) {
  typename Method::Options defaults;
  return write_options(option_fields<Method>(options), option_fields<Method>(defaults));
}

inline constexpr std::string_view kSpaces = " \t\r\n";

/// The text between the spaces around it.
[[nodiscard]] inline std::string_view without_spaces(std::string_view text) noexcept {
  const std::size_t first = std::min(text.find_first_not_of(kSpaces), text.size());
  return text.substr(first, text.find_last_not_of(kSpaces) + 1 - first);
}

/// Sets the options that `text` names: key=value, separated by commas. Throws InvalidArgument,
/// naming `where`, for a key that does not exist (listing those that do) or comes twice, and for a
/// value that cannot be read (saying what is expected).
inline void read_options(std::string_view text, const OptionFields& options,
                         std::string_view where) {
  std::vector<std::string_view> seen;
  for (bool more = !without_spaces(text).empty(); more;) {
    const std::size_t comma = text.find(',');
    more = comma != std::string_view::npos;
    const std::string_view pair = text.substr(0, comma);
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
    const std::size_t equals = pair.find('=');
    const std::string_view key = without_spaces(pair.substr(0, equals));
    const std::string_view value = equals == std::string_view::npos
                                       ? std::string_view()
                                       : without_spaces(pair.substr(equals + 1));
    const auto refuse = [&](std::string_view before, std::string_view middle,
                            std::string_view after) {
      throw_invalid_argument(where, std::string(before).append(key).append(middle).append(after));
    };
    if (std::find(seen.begin(), seen.end(), key) != seen.end())
      refuse("option '", "' comes twice", "");
    seen.push_back(key);
    bool found = false;
    std::string valid;
    for (const OptionFields::Field& field : options.all()) {
      valid.append(valid.empty() ? "" : ", ").append(field.name);
      if (field.name != key)
        continue;
      found = true;
      std::string expected;
      if (!field.read(value, field.value, expected))
        refuse("option ", std::string("='").append(value).append("': expected "), expected);
    }
    if (!found)
      refuse("no option '", "'; valid: ", valid.empty() ? "none" : std::string_view(valid));
  }
}
template <class Method>
void read_options(std::string_view text, typename Method::Options& options,
                  std::string_view where = Method::kName) {
  read_options(text, option_fields<Method>(options), where);
}

}  // namespace detail
KVEVICT_NAMESPACE_END

#endif  // KVEVICT_OPTION_TEXT_HPP_
