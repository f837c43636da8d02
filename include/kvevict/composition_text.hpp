#ifndef KVEVICT_COMPOSITION_TEXT_HPP_
#define KVEVICT_COMPOSITION_TEXT_HPP_

#include "kvevict/composition_additions.hpp"
#include "kvevict/composition_parts.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/option_text.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

// A policy with parts that are only known at run time: "snapkv(budget=512) + caote +
// ada(floor=0.1)" is SnapKV's recipe, its scores turned by CAOTE, heads competing as in AdaKV.
// Parts work in the order in which they stand, on the scores that the recipe's own stages leave:
// one array for each set of tokens, whatever the recipe makes of query heads before.
KVEVICT_NAMESPACE_BEGIN

namespace detail {

/// Letters in lower case, without '_' and '-': "Streaming-LLM" and "streaming_llm" are the same.
[[nodiscard]] inline std::string plain_name(std::string_view name) {
  std::string plain;
  for (const char c : name) {
    if (c == '_' || c == '-')
      continue;
    plain.push_back(c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c);
  }
  return plain;
}

/// One "name(key=value,..)" of a text.
struct TextItem {
  std::string_view name;
  std::string_view options;
  std::size_t column;  // of the name, counted from 1

  /// For messages.
  [[nodiscard]] std::string where(std::string_view what) const {
    return std::string(what).append(", column ").append(option_text(column));
  }
};

/// Cuts "a(x=1) + b" into its items. Throws InvalidArgument with the column of what does not fit.
[[nodiscard]] inline std::vector<TextItem> split_composition(std::string_view text) {
  const auto fail = [](std::size_t at, std::string_view what) {
    throw_invalid_argument(
        "make_policy",
        std::string("column ").append(option_text(at + 1)).append(": ").append(what));
  };
  const std::string name_ends = std::string(kSpaces).append("(+)");
  std::vector<TextItem> items;
  std::size_t at = 0;
  const auto skip_spaces = [&] { at = std::min(text.find_first_not_of(kSpaces, at), text.size()); };
  for (;;) {
    skip_spaces();
    const std::size_t first = at;
    at = std::min(text.find_first_of(name_ends, at), text.size());
    if (at == first)
      fail(first, "expected a name");
    TextItem item{text.substr(first, at - first), {}, first + 1};
    skip_spaces();
    if (at < text.size() && text[at] == '(') {
      const std::size_t close = text.find(')', at);
      if (close == std::string_view::npos)
        fail(at, "'(' is never closed");
      item.options = text.substr(at + 1, close - at - 1);
      at = close + 1;
      skip_spaces();
    }
    items.push_back(item);
    if (at == text.size())
      return items;
    if (text[at] != '+')
      fail(at, "expected '+' or the end");
    ++at;
  }
}

/// Adds the part that `item` names; returns it in the form in which it reads back. Throws
/// InvalidArgument for one that is not known, and lists those that fit; for one that does not fit
/// the policy or what stands before it; for options that make no sense.
template <class... Parts>
std::string add_part(PartList<Parts...> /*parts*/, const TextItem& item, const PartHost& host,
                     const PartContext& context, Additions& additions) {
  const std::string wanted = plain_name(item.name);
  std::string written;
  std::string fitting;
  const auto try_part = [&]<class Part>(std::type_identity<Part>) {
    const std::string_view misplaced = misfit_behind(additions.kinds, Part::kKind);
    const std::string_view misfit = misfit_of(Part::kKind, host);
    if (misplaced.empty() && misfit.empty())
      fitting.append(fitting.empty() ? "" : ", ").append(Part::kName);
    if (!written.empty() || plain_name(Part::kName) != wanted)
      return;
    const std::string where = item.where(Part::kName);
    if (!misplaced.empty())
      throw_invalid_argument(where, misplaced);
    if (!misfit.empty())
      throw_invalid_argument(where, std::string(host.name).append(" ").append(misfit));
    typename Part::Options options;
    read_options<Part>(item.options, options, where);
    Additions added;
    Part::add(options, {where, context.shape, context.output_projection}, added);
    additions.take(std::move(added), Part::kKind);
    const std::string changed = write_options<Part>(options);
    written = Part::kName;
    if (!changed.empty())
      written.append("(").append(changed).append(")");
  };
  (try_part(std::type_identity<Parts>{}), ...);
  if (written.empty()) {
    throw_invalid_argument("make_policy",
                           std::string("column ")
                               .append(option_text(item.column))
                               .append(": no part '")
                               .append(item.name)
                               .append("'; here fit: ")
                               .append(fitting.empty() ? "none" : std::string_view(fitting)));
  }
  return written;
}

}  // namespace detail
KVEVICT_NAMESPACE_END

#endif  // KVEVICT_COMPOSITION_TEXT_HPP_
