#ifndef KVEVICT_COMPOSITION_TEXT_HPP_
#define KVEVICT_COMPOSITION_TEXT_HPP_

#include "kvevict/allocation/allocation.hpp"
#include "kvevict/config.hpp"
#include "kvevict/core/error.hpp"
#include "kvevict/core/protection.hpp"
#include "kvevict/core/scored_lane.hpp"
#include "kvevict/core/sequence.hpp"
#include "kvevict/core/shape.hpp"
#include "kvevict/core/types.hpp"
#include "kvevict/option_text.hpp"
#include "kvevict/policies/composed.hpp"
#include "kvevict/scoring/group_reduce.hpp"
#include "kvevict/scoring/normalize.hpp"
#include "kvevict/scoring/output_change.hpp"
#include "kvevict/scoring/output_contribution.hpp"
#include "kvevict/scoring/output_projection.hpp"
#include "kvevict/scoring/pipeline.hpp"
#include "kvevict/scoring/pooling.hpp"
#include "kvevict/scoring/score_input.hpp"
#include "kvevict/scoring/stages.hpp"
#include "kvevict/selection/head_floors.hpp"
#include "kvevict/selection/whole_chunks.hpp"

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

// A policy with parts that are only known at run time: "snapkv(budget=512) + caote +
// ada(floor=0.1)" is SnapKV's recipe, its scores turned by CAOTE, heads competing as in AdaKV.
// Parts work in the order in which they stand, on the scores that the recipe's own stages leave:
// one array for each set of tokens, whatever the recipe makes of query heads before.
KVEVICT_NAMESPACE_BEGIN

namespace detail {

/// Stages that a text may add; each is also a part of a recipe.
struct AddedStages {
  std::vector<std::variant<OutputChange, TimesValues, Pool, SumToOne, SharesOfLayer>> stages;

  void apply(const ScoreInput& input, LaneScores& scores) const {
    visit([&](const auto& stage) {
      if constexpr (LaneStage<decltype(stage)>)
        stage.apply(input, scores);
    });
  }
  void apply_to_pool(const ScoreInput& input, std::span<ScoredLane> lanes) const {
    visit([&](const auto& stage) {
      if constexpr (PoolWideStage<decltype(stage)>)
        stage.apply_to_pool(input, lanes);
    });
  }
  [[nodiscard]] bool is_idle() const noexcept { return stages.empty(); }
  /// What they read.
  [[nodiscard]] Inputs inputs() const {
    Inputs all = Inputs::kNothing;
    visit([&](const auto& stage) {
      all = all | required_by<std::remove_cvref_t<decltype(stage)>>();
    });
    return all;
  }

 private:
  template <class Visit>
  void visit(Visit&& each) const {
    for (const auto& stage : stages)
      std::visit(each, stage);
  }
};

/// Everything that a text adds to a recipe.
struct Additions {
  AddedStages stages;
  std::optional<Competition> competition;
  std::variant<std::monostate, HeadFloors, WholeChunks> selector;

  /// Takes over what one part adds; false where an earlier one has decided the same.
  [[nodiscard]] bool take(Additions part) {
    if ((competition && part.competition) || (selector.index() != 0 && part.selector.index() != 0))
      return false;
    for (auto& stage : part.stages.stages)
      stages.stages.push_back(std::move(stage));
    if (part.competition)
      competition = part.competition;
    if (part.selector.index() != 0)
      selector = std::move(part.selector);
    return true;
  }
};

/// A recipe's selection, or the one that a text puts in its place.
template <class Base>
struct SelectorWithAdditions {
  static constexpr Inputs kRequiredInputs = required_by<Base>();

  Base base;
  std::variant<std::monostate, HeadFloors, WholeChunks> added;

  [[nodiscard]] bool chooses() const noexcept { return kBaseChooses || added.index() != 0; }
  template <class Signal>
  void choose(std::span<ScoredLane> lanes, std::size_t quota, const ScoreInput& input,
              const Signal& signal) const {
    if (const auto* floors = std::get_if<HeadFloors>(&added)) {
      floors->choose(lanes, quota, input);
    } else if (const auto* chunks = std::get_if<WholeChunks>(&added)) {
      chunks->choose(lanes, quota, input);
      // NOLINTNEXTLINE(bugprone-branch-clone): the arguments differ
    } else if constexpr (requires { base.choose(lanes, quota, input, signal); }) {
      base.choose(lanes, quota, input, signal);
    } else if constexpr (kBaseChooses) {
      base.choose(lanes, quota, input);
    }
  }

 private:
  static constexpr bool kBaseChooses = !std::same_as<Base, std::tuple<>>;
};

template <class Base>
struct OptionsWithAdditions : Base::Options {
  Additions additions;
};

/// A recipe that a text may add to.
template <Recipe Base>
struct WithAdditions : Base {
  using Options = OptionsWithAdditions<Base>;

  static void check(const Options& options, const CacheShape& shape) {
    check_recipe<Base>(options, shape);
    // Of a set that heads share, the scores are one by now and the values are still several.
    if (Base::scope(options) != MaskScope::kHead &&
        covers(options.additions.stages.inputs(), Inputs::kValues)) {
      throw_invalid_argument(Base::kName, "a part that reads values needs scope = head");
    }
  }
  [[nodiscard]] static Inputs added_inputs(const Options& options) {
    return options.additions.stages.inputs();
  }
  static auto pipeline(const Options& options, const CacheShape& shape) {
    return Base::pipeline(options, shape) | options.additions.stages;
  }
  static auto allocator(const Options& options, const CacheShape& shape) {
    return EditedAllocator(allocator_of<Base>(options, shape),
                           SetCompetition{options.additions.competition});
  }
  static auto selector(const Options& options) {
    return SelectorWithAdditions<decltype(selector_of<Base>(options))>{selector_of<Base>(options),
                                                                       options.additions.selector};
  }
};

// Parts by name. Each has options of its own and says what it adds.

/// What parts may need of the model.
struct PartContext {
  const CacheShape& shape;
  const std::shared_ptr<const OutputProjection>& output_projection;
};

template <OutputEstimate kEstimate>
struct CaotePart {
  static constexpr std::string_view kName =
      kEstimate == OutputEstimate::kExact ? "caote" : "fast_caote";
  struct Options {
    bool raw = false;  ///< the scores are attention already: do not divide them by their sum
  };
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("raw", options.raw);
  }
  static void add(const Options& options, const PartContext& /*context*/, Additions& to) {
    if (!options.raw)
      to.stages.stages.emplace_back(SumToOne{});
    to.stages.stages.emplace_back(OutputChange{kEstimate});
  }
};

struct ValuesPart {
  static constexpr std::string_view kName = "values";
  struct Options {
    ValueFactor factor = ValueFactor::kNorm;
  };
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("factor", options.factor);
  }
  static void add(const Options& options, const PartContext& context, Additions& to) {
    check_value_factor(kName, options.factor, context.output_projection.get(), context.shape,
                       GroupReading::kMeanNorms);
    to.stages.stages.emplace_back(TimesValues{.factor = options.factor,
                                              .reading = GroupReading::kMeanNorms,
                                              .projection = context.output_projection});
  }
};

struct PoolPart {
  static constexpr std::string_view kName = "pool";
  using Options = Pooling;
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("kind", options.kind);
    visit("kernel_size", options.kernel_size);
    visit("edge", options.edge);
  }
  static void add(const Options& options, const PartContext& /*context*/, Additions& to) {
    options.check(kName);
    to.stages.stages.emplace_back(Pool{options});
  }
};

/// A part without options.
struct PlainPart {
  struct Options {};
  template <class Visit>
  static void visit_options(Options& /*options*/, Visit&& /*visit*/) {}
};
struct SumToOnePart : PlainPart {
  static constexpr std::string_view kName = "sum_to_one";
  static void add(const Options& /*options*/, const PartContext& /*context*/, Additions& to) {
    to.stages.stages.emplace_back(SumToOne{});
  }
};
struct LayerSharesPart : PlainPart {
  static constexpr std::string_view kName = "layer_shares";
  static void add(const Options& /*options*/, const PartContext& /*context*/, Additions& to) {
    to.stages.stages.emplace_back(SharesOfLayer{});
  }
};
struct LayerPart : PlainPart {
  static constexpr std::string_view kName = "layer";
  static void add(const Options& /*options*/, const PartContext& /*context*/, Additions& to) {
    to.competition = Competition::kLayer;
  }
};
struct ModelPart : PlainPart {
  static constexpr std::string_view kName = "model";
  static void add(const Options& /*options*/, const PartContext& /*context*/, Additions& to) {
    to.competition = Competition::kModel;
  }
};

struct AdaPart {
  static constexpr std::string_view kName = "ada";
  struct Options {
    double floor = 0.2;
    FloorRule rule = FloorRule::kInterpolate;
    bool floor_of_whole = false;
  };
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("floor", options.floor);
    visit("rule", options.rule);
    visit("floor_of_whole", options.floor_of_whole);
  }
  static void add(const Options& options, const PartContext& /*context*/, Additions& to) {
    require(options.floor >= 0.0 && options.floor <= 1.0, kName, "floor", options.floor,
            "must be in [0, 1]");
    to.competition = Competition::kLayer;
    to.selector.emplace<HeadFloors>(options.rule, options.floor, false, options.floor_of_whole);
  }
};

struct ChunksPart {
  static constexpr std::string_view kName = "chunks";
  using Options = ChunkOptions;
  template <class Visit>
  static void visit_options(Options& options, Visit&& visit) {
    visit("chunk_len", options.chunk_len);
    visit("score", options.score);
    visit("fill_rest", options.fill_rest);
  }
  static void add(const Options& options, const PartContext& /*context*/, Additions& to) {
    options.check(kName);
    to.selector.emplace<WholeChunks>(options);
  }
};

template <class... Parts>
struct PartList {};

/// Every part that a text can add. A new one is a line here.
using NamedParts =
    PartList<CaotePart<OutputEstimate::kExact>, CaotePart<OutputEstimate::kMeanValue>, ValuesPart,
             PoolPart, SumToOnePart, LayerSharesPart, LayerPart, ModelPart, AdaPart, ChunksPart>;

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
  std::vector<TextItem> items;
  std::size_t at = 0;
  const auto skip_spaces = [&] {
    while (at < text.size() && text[at] == ' ')
      ++at;
  };
  for (;;) {
    skip_spaces();
    const std::size_t first = at;
    at = std::min(text.find_first_of(" (+)", at), text.size());
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

/// Adds the part that `item` names; returns it in the form in which it reads back.
template <class... Parts>
std::string add_part(PartList<Parts...> /*parts*/, const TextItem& item, const PartContext& context,
                     Additions& additions) {
  const std::string wanted = plain_name(item.name);
  std::string written;
  std::string known;
  const auto try_part = [&]<class Part>(std::type_identity<Part>) {
    known.append(known.empty() ? "" : ", ").append(Part::kName);
    if (!written.empty() || plain_name(Part::kName) != wanted)
      return;
    typename Part::Options options;
    read_options<Part>(item.options, options, item.where(Part::kName));
    Additions added;
    Part::add(options, context, added);
    if (!additions.take(std::move(added)))
      throw_invalid_argument(item.where(Part::kName), "a part before it has decided the same");
    const std::string changed = write_options<Part>(options);
    written = Part::kName;
    if (!changed.empty())
      written.append("(").append(changed).append(")");
  };
  (try_part(std::type_identity<Parts>{}), ...);
  if (written.empty()) {
    throw_invalid_argument("make_policy", std::string("column ")
                                              .append(option_text(item.column))
                                              .append(": no part '")
                                              .append(item.name)
                                              .append("'; here fit: ")
                                              .append(known));
  }
  return written;
}

}  // namespace detail
KVEVICT_NAMESPACE_END

#endif  // KVEVICT_COMPOSITION_TEXT_HPP_
