// The tables of policies/README.md against what the policies say of themselves and store, and the
// README's table of parts. That the tables of policies are those of the headers is checked by
// cmake/check_reference.cmake.
#include "kvevict/composition_parts.hpp"
#include "kvevict/make_policy.hpp"
#include "kvevict/option_text.hpp"
#include "support/count_allocations.hpp"
#include "support/window_cache.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace kvevict {
namespace {

constexpr CacheShape kShape{.num_layers = 4, .num_q_heads = 4, .num_kv_heads = 2, .head_dim = 4};

struct Row {
  std::string set, cuts, needs, made_offline, state;
};

std::vector<std::string> cells_of(std::string_view line) {
  std::vector<std::string> cells;
  for (std::size_t at = 2; at < line.size();) {
    const std::size_t end = std::min(line.find(" | ", at), line.size());
    cells.emplace_back(line.substr(at, end - at));
    at = end + 3;
  }
  return cells;
}

/// The rows of both tables, by the names of the policies.
std::map<std::string, Row> reference() {
  std::map<std::string, Row> rows;
  std::ifstream file("include/kvevict/policies/README.md");  // tests run in the project's root
  bool takes = false;                                        // the second table
  for (std::string line; std::getline(file, line);) {
    takes = takes || line.starts_with("<!-- needs:");
    const std::vector<std::string> cells = cells_of(line);
    if (!line.starts_with("| [`") || cells.size() != 5)
      continue;
    Row& row = rows[cells[0].substr(2, cells[0].find("`]") - 2)];
    if (takes) {
      row.needs = cells[1];
      row.made_offline = cells[2];
      row.state = cells[3];
    } else {
      row.set = cells[2];
      row.cuts = cells[3];
    }
  }
  return rows;
}

bool has_word(std::string_view text, std::string_view word) {
  const auto is_letter = [&](std::size_t at) {
    return at < text.size() &&
           (std::isalnum(static_cast<unsigned char>(text[at])) != 0 || text[at] == '_');
  };
  for (std::size_t at = text.find(word); at != std::string_view::npos;
       at = text.find(word, at + 1)) {
    if ((at == 0 || !is_letter(at - 1)) && !is_letter(at + word.size()))
      return true;
  }
  return false;
}

Inputs inputs_of(std::string_view needs) {
  Inputs inputs = Inputs::kNothing;
  const auto add = [&](std::string_view word, Inputs input) {
    if (has_word(needs, word))
      inputs = inputs | input;
  };
  for (const char* word : {"row", "rows", "queries"})
    add(word, Inputs::kAttention);
  add("hidden states", Inputs::kHiddenStates);
  add("K", Inputs::kKeys);
  add("V", Inputs::kValues);
  add("W_O", Inputs::kOutputProjection);
  add("scores", Inputs::kScores);
  return inputs;
}

AttentionUse use_of(std::string_view needs) {
  if (has_word(needs, "queries"))
    return AttentionUse::kQueries;
  if (has_word(needs, "every row"))
    return AttentionUse::kAllRows;
  if (has_word(needs, "newest"))
    return AttentionUse::kLastRow;
  return has_word(needs, "prompt") && !has_word(needs, "scores") ? AttentionUse::kWindow
                                                                 : AttentionUse::kNone;
}

/// Options with which the policy can be made, defaults otherwise.
template <class P>
typename P::Options options_of() {
  typename P::Options options;
  const auto projection = [] {
    auto made = std::make_shared<OutputProjection>(kShape, 8, std::nullopt, true);
    const std::vector<float> weight(kShape.num_q_heads * kShape.value_size() * 8, 1.0F);
    for (std::size_t layer = 0; layer < kShape.num_layers; ++layer)
      made->set_layer(layer, weight.data());
    return made;
  };
  if constexpr (requires { options.output_projection; })
    options.output_projection = projection();
  if constexpr (requires { options.rotary; })
    options.rotary = {.inv_freq = {1.0, 0.1}};
  if constexpr (requires { options.query_filters; }) {
    options.query_filters = std::make_shared<const QueryFilters>(
        kShape.num_layers * kShape.num_kv_heads * kShape.head_dim, 1.0F);
  }
  if constexpr (requires { options.query_statistics; } && P::kNeedsArtefact) {
    options.query_statistics =
        std::make_shared<const QueryStatistics>(kShape, true, options.rotary);
  }
  if constexpr (std::is_same_v<P, DuoAttention>)
    options.head_scores.assign(kShape.num_layers * kShape.num_kv_heads, 0.5);
  return options;
}

std::string set_of(MaskScope scope) {
  return scope == MaskScope::kHead ? "head" : scope == MaskScope::kLayer ? "layer" : "model";
}

template <class P>
std::string cuts_of(const P& policy) {
  if (!P::kChangesLength)
    return "nothing";
  if (!policy.touches_prompt())
    return "decoded tokens";
  switch (policy.method().trigger()) {
    case Trigger::kPrefillEnd:
      return "at prompt ends";
    case Trigger::kDecodeSteps:
      return "while decoding";
    case Trigger::kEveryStep:
      break;
  }
  return "at any time";
}

/// Bytes per token that a cell promises: "4 B + 8 B per layer; ..." or "none".
std::size_t bytes_per_token(std::string_view cell) {
  std::istringstream words(std::string(cell.substr(0, cell.find_first_of(";("))));
  std::size_t total = 0;
  std::size_t bytes = 0;
  std::string word;
  const auto finish = [&](std::size_t times) {
    total += bytes * times;
    bytes = 0;
  };
  while (words >> word) {
    if (word == "layer") {
      finish(kShape.num_layers);
    } else if (word == "KV") {
      finish(kShape.num_layers * kShape.num_kv_heads);
    } else if (word == "query") {
      finish(kShape.num_layers * kShape.num_q_heads);
    } else if (word == "+") {
      finish(1);
    } else if (std::isdigit(static_cast<unsigned char>(word[0])) != 0) {
      bytes = std::stoul(word);
    }
  }
  finish(1);
  return total;
}

template <class P>
std::size_t bytes_of_copy(const P& policy) {
  const kvevict_test::CountedAllocations counted;
  const P copy(policy);
  static_cast<void>(copy);
  return kvevict_test::CountedAllocations::bytes();
}

// Vectors copy what they hold and no spare capacity. Only the state grows in an append.
TEST(Reference, StatesHowManyBytesEachTokenTakes) {
  constexpr std::size_t kPromptLen = 16;
  constexpr std::size_t kNumTokens = 96;
  const std::map<std::string, Row> rows = reference();
  std::size_t num_without_state = 0;
  detail::for_each_policy(NamedPolicies{}, [&](auto type) {
    using P = typename decltype(type)::type;
    SCOPED_TRACE(std::string(P::kName));
    const auto found = rows.find(std::string(P::kName));
    ASSERT_NE(found, rows.end());
    const std::string& cell = found->second.state;
    P policy(options_of<P>(), kShape);
    kvevict_test::WindowCache cache(kShape, kPromptLen);
    cache.append(kPromptLen);
    policy.begin(kPromptLen);
    policy.end_prefill(cache.view());
    const std::size_t before = bytes_of_copy(policy);
    policy.append(kNumTokens);
    EXPECT_EQ(bytes_of_copy(policy) - before, kNumTokens * bytes_per_token(cell)) << cell;
    num_without_state += cell.starts_with("none") ? 1 : 0;
  });
  EXPECT_LT(num_without_state, rows.size() / 2);
}

TEST(Reference, SaysOfEveryPolicyWhatItSaysOfItself) {
  const std::map<std::string, Row> rows = reference();
  detail::for_each_policy(NamedPolicies{}, [&](auto type) {
    using P = typename decltype(type)::type;
    const std::string name(P::kName);
    SCOPED_TRACE(name);
    const auto found = rows.find(name);
    ASSERT_NE(found, rows.end());
    const Row& row = found->second;
    EXPECT_EQ(inputs_of(row.needs), P::kRequiredInputs) << row.needs;
    EXPECT_EQ(use_of(row.needs), P::kAttentionUse) << row.needs;
    EXPECT_EQ(row.needs == "nothing", P::kRequiredInputs == Inputs::kNothing);
    EXPECT_EQ(has_word(row.needs, "labels"), P::wants_labels());
    EXPECT_EQ(row.made_offline != "-", P::kNeedsArtefact) << row.made_offline;
    const P policy(options_of<P>(), kShape);
    EXPECT_EQ(row.set, set_of(policy.method().scope()));
    EXPECT_EQ(row.cuts, cuts_of(policy));
  });
}

// NaN compares false with everything, so a check written the wrong way round lets it in; what it
// is multiplied with becomes NaN in silence.
TEST(Reference, EveryNumberAmongTheOptionsHasToBeOne) {
  std::size_t num_options = 0;
  detail::for_each_policy(NamedPolicies{}, [&](auto type) {
    using P = typename decltype(type)::type;
    using Method = typename detail::TextMethod<P>::Type;
    typename Method::Options names = options_of<Policy<Method>>();
    Method::visit_options(names, [&](std::string_view name, auto& option) {
      using Option = std::remove_cvref_t<decltype(option)>;
      if constexpr (std::is_floating_point_v<Option>) {
        SCOPED_TRACE(std::string(P::kName).append(" ").append(name));
        typename Method::Options options = options_of<Policy<Method>>();
        Method::visit_options(options, [&](std::string_view other, auto& value) {
          if constexpr (std::is_same_v<std::remove_cvref_t<decltype(value)>, Option>) {
            if (other == name)
              value = std::numeric_limits<Option>::quiet_NaN();
          }
        });
        EXPECT_THROW(Policy<Method>(options, kShape), InvalidArgument);
        ++num_options;
      }
    });
  });
  EXPECT_GT(num_options, 40U);
}

/// "name(option=default,..)" of a part, a table without one as "..", and in `names` what its enums
/// may be.
template <class Part>
std::string signature_of(std::vector<std::string>& names) {
  typename Part::Options options;
  std::string text(Part::kName);
  char before = '(';
  Part::visit_options(options, [&](std::string_view name, auto& option) {
    const std::string value = detail::option_text(option);
    text.append(1, before).append(name).append("=").append(value.empty() ? ".." : value);
    before = ',';
    if constexpr (std::is_enum_v<std::remove_cvref_t<decltype(option)>>) {
      for (const auto& enumerator : enum_names(option))
        names.emplace_back(enumerator.first);
    }
  });
  return before == '(' ? text : text + ")";
}
template <class... Parts>
void check_parts(detail::PartList<Parts...> /*parts*/, std::vector<std::string>& rows) {
  const auto check = [&]<class Part>(std::type_identity<Part>) {
    std::vector<std::string> names;
    const std::string row = "| `" + signature_of<Part>(names) + "` |";
    const auto found = std::find_if(rows.begin(), rows.end(),
                                    [&](const std::string& line) { return line.starts_with(row); });
    ASSERT_NE(found, rows.end()) << row;
    for (const std::string& name : names)
      EXPECT_NE(found->find("`" + name + "`", row.size()), std::string::npos) << row << " " << name;
    rows.erase(found);
  };
  (check(std::type_identity<Parts>{}), ...);
}

TEST(Reference, TheTableOfPartsHasAllOfTheirOptionsWithTheirDefaults) {
  std::vector<std::string> rows;
  std::ifstream file("README.md");
  std::string line;
  while (std::getline(file, line) && !line.starts_with("| part, with its defaults |"))
    continue;
  std::getline(file, line);  // the rule under the head
  while (std::getline(file, line) && line.starts_with("|"))
    rows.push_back(line);
  check_parts(detail::NamedParts{}, rows);
  EXPECT_TRUE(rows.empty()) << rows.front();
}

TEST(Reference, PromptsAreTouchedUnlessTheyAreProtectedWhole) {
  EXPECT_FALSE(RaaS({}, kShape).touches_prompt());
  EXPECT_FALSE(RaaSBounds({}, kShape).touches_prompt());
  EXPECT_TRUE(RandomEviction({}, kShape).touches_prompt());
  EXPECT_FALSE(RandomEviction({.protection = {.prompt = true}}, kShape).touches_prompt());
  // A prompt that is longer than the budget gives way.
  EXPECT_TRUE(RandomAttention({}, kShape).touches_prompt());
  EXPECT_FALSE(FullKV({}, kShape).touches_prompt());
}

// A share of the prompt: a twentieth of 200 tokens are heavy, a tenth recent.
TEST(Reference, ProtectionIsWhatStaysWhateverItsScore) {
  H2O h2o({.heavy = Budget::keep_ratio(0.05), .recent = Budget::keep_ratio(0.1)}, kShape);
  h2o.begin(200);
  EXPECT_EQ(h2o.protection().recent_window, 20U);
  EXPECT_EQ(h2o.protection().num_sink_tokens, 0U);
  EXPECT_TRUE(SnapKV({}, kShape).protection().after_prompt);
  EXPECT_FALSE(TOVA({}, kShape).protection().after_prompt);
}

TEST(Reference, RollbackIsLimitedByWhatIsRemembered) {
  EXPECT_EQ(EpiKV({.max_rollback = 5}, kShape).max_rollback(), 5U);
  EXPECT_EQ(H2O({}, kShape).max_rollback(), std::numeric_limits<std::size_t>::max());
  // The newest queries or rows are remembered; drafts push out older ones.
  EXPECT_EQ(VaSE({}, kShape).max_rollback(), 0U);
  EXPECT_EQ(RKV({}, kShape).max_rollback(), 0U);
  EXPECT_EQ(AhaKV({}, kShape).max_rollback(), 0U);
}

TEST(Reference, AnyPolicyPassesItOn) {
  const AnyPolicy epikv = make_policy<PolicyList<EpiKV>>("epikv", "max_rollback=5", {kShape});
  EXPECT_TRUE(epikv.changes_length());
  EXPECT_FALSE(epikv.needs_artefact());
  EXPECT_FALSE(epikv.touches_prompt());
  EXPECT_EQ(epikv.max_rollback(), 5U);
  EXPECT_TRUE(epikv.protection().prompt);
  const AnyPolicy full(FullKV({}, kShape));
  EXPECT_FALSE(full.changes_length());
  const AnyPolicy evolkv(EvolKV({}, kShape));
  EXPECT_TRUE(evolkv.needs_artefact());
  EXPECT_TRUE(evolkv.touches_prompt());
}

}  // namespace
}  // namespace kvevict
